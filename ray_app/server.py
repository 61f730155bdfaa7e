"""Starts and stops the Ray Serve application: an ingress in front of one or more replicas."""

from __future__ import annotations

import logging
import threading
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from ray_app.config import ServerConfig
from ray_app.ingress import Ingress
from ray_app.replica import EngineReplica
from ray_app.supervisor import DRAIN_SECONDS, Status

Handle = DeploymentHandle[Any]
"""What the launcher holds of the ingress."""

APP_NAME = "switchsteer"

POLL_SECONDS = 0.25

STOP_SECONDS = 60.0
"""Bound on a stop: drain, clean ends, kills."""

_SERVE_LOGGING = {"log_level": "ERROR", "enable_access_log": False}
"""Serve's proxy warns of the network whenever a busy replica answers later than in 0.1 s."""

_DEPLOYMENT: dict[str, Any] = {
    "max_constructor_retry_count": 1,
    "ray_actor_options": {"num_cpus": 0},
    "logging_config": {"log_level": "WARNING", "enable_access_log": False},
}


def deploy(config: ServerConfig) -> Handle:
    """Start Serve and the application; engines go on loading, see ``wait_started``.

    Raises:
        ValueError: Serve already runs in this cluster; its address cannot be changed.
    """
    running = serve.status()
    if running.proxies or running.applications:
        raise ValueError(
            "Ray Serve already runs in this cluster: stop it (serve shutdown) or take another one"
        )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": config.host, "port": config.port},
        logging_config=_SERVE_LOGGING,
    )
    return serve.run(application(config), name=APP_NAME, route_prefix="/")


def application(config: ServerConfig) -> Any:
    """The bound deployments: what ``serve.run`` and a Serve configuration file deploy.

    Limits are above what the ingress admits: it turns clients away itself, with a reason, and a
    health check must never wait behind requests.
    """
    limit = 2 * config.max_requests + 16
    replica: Any = serve.deployment(
        EngineReplica,
        name="EngineReplica",
        num_replicas=config.data_parallel_size,
        max_ongoing_requests=limit,
        graceful_shutdown_timeout_s=DRAIN_SECONDS * 2,
        health_check_period_s=2.0,
        **_DEPLOYMENT,
    )
    ingress: Any = serve.deployment(
        serve.ingress()(Ingress), name="Ingress", max_ongoing_requests=limit, **_DEPLOYMENT
    )
    return ingress.bind(replica.bind(config), config)


def wait_started(handle: Handle, cancelled: threading.Event) -> Status:
    """Wait until the engine has generated a first token or has failed, or ``cancelled`` is set.

    It asks again and again, because a signal handler cannot interrupt a call that waits inside Ray.
    """
    status = Status(state="starting")
    while status.state == "starting" and not cancelled.wait(POLL_SECONDS):
        status = handle.status.remote().result()
    return status


def undeploy() -> None:
    """Stop the engine, then Serve; no actor or placement group stays."""
    stop_engine()
    serve.shutdown()


def stop_engine() -> None:
    """Drain and end every rank, if the engine was deployed; enough if the cluster ends next."""
    if APP_NAME in serve.status().applications:
        serve.get_app_handle(APP_NAME).stop.remote().result(timeout_s=STOP_SECONDS)
