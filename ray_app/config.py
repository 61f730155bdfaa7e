"""What a server is made from."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from ray_app.placement import Device

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One engine behind one HTTP address."""

    engine: EngineConfig
    device: Device = "cpu"
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    served_model_name: str

    def __post_init__(self) -> None:
        if not 1 <= self.port <= MAX_PORT:
            raise ValueError(f"--port must be an integer from 1 to {MAX_PORT}, not {self.port}.")
        if self.api_key is not None and not self.api_key:
            raise ValueError("--api-key must not be empty: leave the flag out to need no key.")
        if not self.served_model_name:
            raise ValueError("--served-model-name must not be empty.")
