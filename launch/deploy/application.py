"""What ``serve deploy`` and KubeRay import: the server's flags as a mapping become deployments."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from launch.serve import ServeFlags, server_config
from ray_app.server import application

_NOT_HERE = ("host", "port")
"""Belongs to ``http_options`` of the Serve file."""


def build(args: dict[str, Any]) -> Any:
    """The bound deployments for the arguments of a Serve application.

    Raises:
        ValueError: an argument that is no flag of the server, or a value that it refuses.
    """
    known = [item.name for item in fields(ServeFlags) if item.name not in _NOT_HERE]
    for name in args:
        if name not in known:
            raise ValueError(f"args has no key {name!r}; its keys are {', '.join(known)}.")
    return application(server_config(ServeFlags(**args)))
