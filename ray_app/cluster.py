"""How a process reaches Ray: an existing cluster, or one of its own that ends with it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import ray
import torch

from ray_app.placement import Resources

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: what every worker must import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """Which cluster to use, as the launcher read it from its environment."""

    address: str | None = None
    """An existing cluster; None starts a local one."""
    in_job: bool = False
    """Whether a Ray job runs us: then the job has already shipped the code."""
    num_cpus: int | None = None
    """CPUs of a local cluster; by default this machine's."""


def local_resources() -> Resources:
    """What a local cluster would have, without starting one."""
    return {
        "CPU": float(len(os.sched_getaffinity(0))),
        "GPU": float(torch.cuda.device_count()),
    }


def connect(choice: ClusterChoice) -> None:
    """Join the chosen cluster or start a local one.

    ``address="local"`` for the latter, because Ray otherwise consults its record of the machine's
    last cluster, which may be dead. Works with RAY_AUTH_MODE token, disabled and unset: Ray writes
    and reads the token itself.

    Raises:
        ConnectionError: the existing cluster does not answer.
    """
    if choice.address is None:
        resources = local_resources()
        ray.init(
            address="local",
            num_cpus=choice.num_cpus or int(resources["CPU"]),
            include_dashboard=False,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
    elif choice.in_job:
        ray.init(logging_level=logging.WARNING)
    else:
        ray.init(
            address=choice.address,
            logging_level=logging.WARNING,
            runtime_env={"working_dir": str(ROOT)},
        )


def disconnect() -> None:
    """Leave the cluster; a local one ends with all its processes."""
    ray.shutdown()
