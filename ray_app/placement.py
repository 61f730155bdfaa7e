"""Where the ranks go: one bundle per tensor-parallel group, so that no group straddles nodes.

With one-GPU bundles Ray's PACK may split a group of four as 5 + 3 over two nodes; a bundle lies on
one node by definition. Stages may lie apart: they exchange one hidden state per step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from engine.config import EngineConfig

logger = logging.getLogger(__name__)

Device = Literal["cpu", "cuda"]
"""What a rank computes on."""

Resources = Mapping[str, float]

_FIRST_NOTE_SECONDS = 5.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a gang asks of the cluster."""

    bundle: Resources
    """Resources of one tensor-parallel group, on one node."""
    num_bundles: int
    """Pipeline stages."""

    @property
    def strategy(self) -> str:
        """One node if it can be; stages may spread."""
        return "STRICT_PACK" if self.num_bundles == 1 else "PACK"

    def describe(self) -> str:
        """The request in words."""
        each = f"{describe_resources(self.bundle)} on one node"
        return each if self.num_bundles == 1 else f"{self.num_bundles} times {each}"


def placement_for(config: EngineConfig, device: Device) -> Placement:
    """One CPU per rank, and one GPU each on ``cuda``."""
    size = float(config.tensor_parallel_size)
    bundle = {"CPU": size} if device == "cpu" else {"GPU": size, "CPU": size}
    return Placement(bundle=bundle, num_bundles=config.pipeline_parallel_size)


def describe_resources(resources: Resources) -> str:
    """For example '2 CPUs and 0 GPUs'."""
    counts = [(kind, round(resources.get(kind, 0))) for kind in ("GPU", "CPU")]
    shown = [f"{n} {kind}{'s' * (n != 1)}" for kind, n in counts if kind in resources]
    return " and ".join(shown) or "nothing"


def check_capacity(placement: Placement, nodes: Iterable[Resources]) -> None:
    """Refuse what these nodes could not hold even when they are empty.

    Raises:
        ValueError: names what is asked and what there is.
    """
    nodes = list(nodes)
    fitting = sum(
        min(int(node.get(kind, 0.0) // count) for kind, count in placement.bundle.items())
        for node in nodes
    )
    if fitting < placement.num_bundles:
        there = ", ".join(
            describe_resources({kind: node.get(kind, 0.0) for kind in placement.bundle})
            for node in nodes
        )
        raise ValueError(
            f"the verifier ranks need {placement.describe()}, and here are {there or 'no nodes'}: "
            "choose --tensor-parallel-size and --pipeline-parallel-size to fit"
        )


def cluster_nodes() -> list[Resources]:
    """Total resources of every living node of the connected cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def reserve(placement: Placement, *, timeout: float, cancelled: threading.Event) -> PlacementGroup:
    """Create the placement group and wait until others have freed what it needs.

    Raises:
        ValueError: the cluster is too small.
        TimeoutError: the resources stayed in use for ``timeout`` seconds, or ``cancelled`` was set.
    """
    check_capacity(placement, cluster_nodes())
    bundles = [dict(placement.bundle) for _ in range(placement.num_bundles)]
    group: PlacementGroup = placement_group(bundles, strategy=placement.strategy)
    started, next_note = time.monotonic(), _FIRST_NOTE_SECONDS
    while not group.wait(_LOOK_SECONDS):
        waited = time.monotonic() - started
        shortage = f"{placement.describe()} wanted, {describe_resources(_available())} free"
        if waited >= timeout or cancelled.is_set():
            remove_placement_group(group)
            raise TimeoutError(f"no room for the ranks within {waited:.0f} s: {shortage}")
        if waited >= next_note:
            logger.warning("waiting for resources: %s (see: ray status)", shortage)
            next_note *= 2
    return group


def _available() -> Resources:
    free = ray.available_resources()
    return {kind: free.get(kind, 0.0) for kind in ("GPU", "CPU")}


def release(group: PlacementGroup) -> None:
    """Remove the placement group; whatever still runs in it is killed."""
    remove_placement_group(group)
