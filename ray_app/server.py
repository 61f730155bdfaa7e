"""The Ray Serve deployment: one replica that owns one engine and speaks OpenAI's API.

HTTP and engine meet only in ``build_app(backend)``, so an ingress of its own can take the HTTP part
later without touching the rest.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from ray_app.app import build_app
from ray_app.config import ServerConfig
from ray_app.drafter_actor import DrafterVitals
from ray_app.supervisor import DRAIN_SECONDS, Status, Supervisor
from ray_app.verifier_actor import RankPlace

Handle = DeploymentHandle[Any]
"""What the launcher holds of the deployment."""

APP_NAME = "switchsteer"

QUEUED_PER_SLOT = 16
"""Requests let into the replica per decoding slot: the engine queues them itself, and a health
check must never wait behind them."""


class ChatServer:
    """One replica.

    Its health, as Serve sees it, is the process's: a failed engine stays visible as a red
    ``/health`` with the reason, instead of being replaced behind the client's back.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._supervisor = Supervisor(config)
        self._supervisor.begin()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(self._supervisor, self._config.api_key)

    async def status(self) -> Status:
        """The engine's state now."""
        return self._supervisor.status

    async def places(self) -> tuple[RankPlace, ...]:
        """Node and process of every rank."""
        return self._supervisor.places

    async def drafter(self) -> DrafterVitals | None:
        """The drafter's newest sign of life."""
        return self._supervisor.drafter

    async def num_requests(self) -> int:
        """Requests that the engine works on or queues."""
        return self._supervisor.num_requests

    async def stop(self) -> None:
        """Drain and end every rank."""
        await self._supervisor.stop()

    async def __del__(self) -> None:
        await self._supervisor.stop()


def deploy(config: ServerConfig) -> Handle:
    """Start Serve and the replica; the engine goes on loading, see ``wait_started``.

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
    slots = config.engine.max_num_seqs
    deployment: Any = serve.deployment(
        serve.ingress()(ChatServer),
        name="ChatServer",
        num_replicas=1,
        max_ongoing_requests=slots * QUEUED_PER_SLOT,
        max_queued_requests=slots * QUEUED_PER_SLOT,
        max_constructor_retry_count=1,
        graceful_shutdown_timeout_s=DRAIN_SECONDS * 2,
        ray_actor_options={"num_cpus": 0},
        logging_config=_LOGGING,
    )
    return serve.run(deployment.bind(config), name=APP_NAME, route_prefix="/")


_SERVE_LOGGING = {"log_level": "ERROR", "enable_access_log": False}
"""Serve's proxy warns of the network whenever a busy replica answers later than in 0.1 s."""

POLL_SECONDS = 0.25

STOP_SECONDS = 60.0
"""Bound on a stop: drain, clean ends, kills."""

_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


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
