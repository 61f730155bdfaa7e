"""What a Ray program has left behind: actors, placement groups, processes."""

from __future__ import annotations

from collections.abc import Iterable

import psutil
from ray._private import state
from ray.util import placement_group_table


def living_actors(class_name: str) -> list[str]:
    """Ids of the actors of a class that are not dead."""
    return [
        actor_id
        for actor_id, actor in state.actors().items()
        if actor["ActorClassName"] == class_name and actor["State"] != "DEAD"
    ]


def placement_groups() -> list[str]:
    """Ids of the placement groups that still hold or want resources."""
    table = placement_group_table()
    return [group_id for group_id, group in table.items() if group["state"] != "REMOVED"]


def living_processes(pids: Iterable[int]) -> list[int]:
    """Those of ``pids`` that still run."""
    return [pid for pid in pids if psutil.pid_exists(pid)]
