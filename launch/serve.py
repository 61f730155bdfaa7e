"""Serve any recipe through Ray: check everything first, start, print one line, stop cleanly.

A user's mistake ends with one sentence and exit code 2 before anything is started, or, if only the
ranks can see it (a probe of another model, say), after everything has been stopped again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal

from drafters.assemble import configured_probe
from drafters.neural import check_drafter
from engine.config import EngineConfig
from engine.weights import read_model_config, resolve_model
from launch.cli import USER_ERROR, parse, user_errors
from launch.recipes import EngineFlags, engine_config
from parallel.pipeline import stage_layers
from parallel.slices import head_ranges
from ray_app import server
from ray_app.cluster import ClusterChoice, connect, disconnect, local_resources
from ray_app.config import ServerConfig
from ray_app.logs import LogFormat
from ray_app.placement import Device, Placement, check_capacity, cluster_nodes, placement_for
from ray_app.tracing import check_tracing

logger = logging.getLogger(__name__)

FAILURE = 1
"""Exit code when something broke that the user did not cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDefaults:
    """What serving adds to a recipe."""

    device: Device
    tensor_parallel_size: int | None = None
    """Another size than the recipe's."""


SERVING_DEFAULTS = {
    "smollm2": ServingDefaults(device="cpu", tensor_parallel_size=2),
    "llama-3.3-70b": ServingDefaults(device="cuda"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags(EngineFlags):
    """Flags of the server."""

    recipe: str = "llama-3.3-70b"
    """Named configuration: llama-3.3-70b or smollm2."""
    device: Literal["cpu", "cuda"] | None = None
    """What the ranks compute on; by default the recipe's."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is all of them, best with --api-key."""
    port: int = 8000
    """Port to listen on."""
    api_key: str | None = None
    """Key that clients must send as Authorization: Bearer KEY."""
    served_model_name: str | None = None
    """Name of the model in the API; by default --model, else the recipe's name."""
    data_parallel_size: int = 1
    """Replicas of the whole engine."""
    max_waiting: int = 256
    """Requests that may wait for a slot; more are turned away with 429."""
    watchdog_seconds: float = 60.0
    """How long one step may take before the verifier counts as hung."""
    log_format: LogFormat = "text"
    """text shows trouble only, json a line per request with its id."""
    otlp_traces_endpoint: str | None = None
    """OTLP endpoint (HTTP) that gets a span per request."""


def main(argv: Sequence[str] | None = None, *, prog: str = "serve") -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    logging.basicConfig(format=f"{prog}: %(message)s")
    logger.setLevel(logging.INFO)
    flags = parse(ServeFlags, argv, prog=prog, description="Serve a model over HTTP through Ray.")
    cluster = cluster_choice(os.environ)
    with user_errors(prog):
        config = server_config(flags)
        check_port(config.host, config.port)
        if config.otlp_traces_endpoint is not None:
            check_tracing()
        if cluster.address is None:
            check_capacity(_placement(config), [local_resources()])
            check_device(config.device)
            check_model(config.engine)
    try:
        return _connect_and_serve(config, cluster, prog)
    except KeyboardInterrupt:  # Before the handlers were installed.
        return 0


def cluster_choice(environment: Mapping[str, str]) -> ClusterChoice:
    """The cluster that Ray's own variables name; inside a job Ray sets both."""
    return ClusterChoice(
        address=environment.get("RAY_ADDRESS"),
        in_job="RAY_JOB_CONFIG_JSON_ENV_VAR" in environment,
    )


def server_config(flags: ServeFlags) -> ServerConfig:
    """The recipe with serving's defaults and the given flags. Raises ValueError, one sentence."""
    engine = engine_config(flags)
    defaults = SERVING_DEFAULTS[flags.recipe]
    if flags.tensor_parallel_size is None and defaults.tensor_parallel_size is not None:
        engine = replace(engine, tensor_parallel_size=defaults.tensor_parallel_size)
    return ServerConfig(
        engine=engine,
        device=flags.device or defaults.device,
        host=flags.host,
        port=flags.port,
        api_key=flags.api_key,
        served_model_name=flags.served_model_name or flags.model or flags.recipe,
        data_parallel_size=flags.data_parallel_size,
        max_waiting=flags.max_waiting,
        watchdog_seconds=flags.watchdog_seconds,
        log_format=flags.log_format,
        otlp_traces_endpoint=flags.otlp_traces_endpoint,
    )


def _placement(config: ServerConfig) -> Placement:
    """What all replicas need together."""
    one = placement_for(config.engine, config.device)
    return replace(one, num_bundles=one.num_bundles * config.data_parallel_size)


def check_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on. Raises ValueError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port {port} on {host} is in use: stop what listens there or choose another --port"
            ) from None
        raise ValueError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def check_model(engine: EngineConfig) -> None:
    """Refuse a model, probe or drafter that is missing or does not fit. Raises ValueError."""
    model = read_model_config(resolve_model(engine.model))
    head_ranges(model.num_heads, model.num_kv_heads, 0, engine.tensor_parallel_size)
    stage_layers(model.num_layers, 0, engine.pipeline_parallel_size)
    probe = configured_probe(engine)
    if probe is not None:
        probe.check(model, engine.model)
    check_drafter(engine)


def check_device(device: Device) -> None:
    """Refuse what the engine cannot compute on yet. Raises ValueError."""
    if device == "cuda":
        raise ValueError("ranks on GPUs are not available yet: use --device cpu")


def _connect_and_serve(config: ServerConfig, cluster: ClusterChoice, prog: str) -> int:
    logger.info("starting %d verifier ranks of %s", config.engine.num_ranks, config.engine.model)
    try:
        connect(cluster)
    except ConnectionError as error:
        logger.error("no Ray cluster answers at %s: %s", cluster.address, error)
        return USER_ERROR
    try:
        stop = _stop_event()  # After connect: Ray replaces handlers that were there before.
        with user_errors(prog):
            check_capacity(_placement(config), cluster_nodes())
            check_device(config.device)
        return _serve(config, cluster, stop, prog)
    finally:
        disconnect()


def _stop_event() -> threading.Event:
    """Set by SIGINT and SIGTERM from now on.

    The handler must not raise: an exception inside a call into Ray comes out as a SystemError. A
    second signal changes nothing; the waits of the clean-up are all bounded.
    """
    event = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        event.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return event


def _serve(config: ServerConfig, cluster: ClusterChoice, stop: threading.Event, prog: str) -> int:
    """Deploy, wait for the first token, announce, and wait for a signal."""
    try:
        with user_errors(prog):
            handle = server.deploy(config)
        status = server.wait_started(handle, stop)
        if status.state == "failed":
            sys.stderr.write(f"{prog}: {status.detail}\n")
            return USER_ERROR if status.user_error else FAILURE
        if status.state == "ready":
            sys.stdout.write(ready_line(config) + "\n")
            sys.stdout.flush()
        stop.wait()
        return 0
    finally:
        logger.info("stopping")
        if cluster.address is None:
            server.stop_engine()
        else:
            server.undeploy()


def ready_line(config: ServerConfig) -> str:
    """One line with the URL and an example that can be pasted."""
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
    body = {
        "messages": [{"role": "user", "content": "Say hello three times."}],
        "max_tokens": 64,
        "stream": True,
    }
    headers = ["Content-Type: application/json"]
    if config.api_key is not None:
        headers.append("Authorization: Bearer KEY")
    words = ["curl", "-N", f"{url}/v1/chat/completions"]
    words += [word for header in headers for word in ("-H", header)]
    example = shlex.join([*words, "-d", json.dumps(body)])
    return f"ready: {config.served_model_name} at {url}, for example: {example}"


if __name__ == "__main__":
    sys.exit(main())
