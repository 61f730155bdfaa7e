"""What a server is made from."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from ray_app.logs import LogFormat
from ray_app.placement import Device

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One or more engines behind one HTTP address."""

    engine: EngineConfig
    device: Device = "cpu"
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    served_model_name: str
    data_parallel_size: int = 1
    """Replicas of the whole engine."""
    max_waiting: int = 256
    """Requests that may wait for a slot; more are turned away with 429."""
    max_body_bytes: int = 16 << 20
    watchdog_seconds: float = 60.0
    """How long one step may take before the verifier counts as hung."""
    log_format: LogFormat = "text"
    otlp_traces_endpoint: str | None = None
    """Where a span per request is sent to."""

    def __post_init__(self) -> None:
        if not 1 <= self.port <= MAX_PORT:
            raise ValueError(f"--port must be an integer from 1 to {MAX_PORT}, not {self.port}.")
        if self.api_key is not None and not self.api_key:
            raise ValueError("--api-key must not be empty: leave the flag out to need no key.")
        if not self.served_model_name:
            raise ValueError("--served-model-name must not be empty.")
        if self.data_parallel_size < 1:
            raise ValueError(
                f"--data-parallel-size must be 1 or more, not {self.data_parallel_size}."
            )
        if self.max_waiting < 0:
            raise ValueError(f"--max-waiting must be 0 or more, not {self.max_waiting}.")
        if self.watchdog_seconds <= 0:
            raise ValueError(f"--watchdog-seconds must be above 0, not {self.watchdog_seconds:g}.")

    @property
    def max_requests(self) -> int:
        """Requests that may run or wait."""
        return self.data_parallel_size * self.engine.max_num_seqs + self.max_waiting
