"""The HTTP application on a real socket, in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from engine.config import EngineConfig
from ray_app.app import Backend, build_app
from ray_app.config import ServerConfig


@contextmanager
def serving(backend: Backend) -> Iterator[str]:
    """Its URL while it serves."""
    config = ServerConfig(engine=EngineConfig(model="tiny"), served_model_name="tiny")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(build_app(backend, config), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
