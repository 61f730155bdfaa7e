"""The gang of verifier ranks: started together, watched together, stopped together.

The first rank that fails stops all: a collective cannot go on without it. What the user reads is
that rank's own sentence, not its peers' complaints about a lost connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from engine.config import EngineConfig
from ray_app.coordinator_link import LinkAddress
from ray_app.placement import Device, placement_for, release, reserve
from ray_app.verifier_actor import RankPlace, VerifierRank

logger = logging.getLogger(__name__)

RESERVE_SECONDS = 1800.0
"""How long to wait for resources that others hold."""
GRACE_SECONDS = 1.0
"""How long to collect further failures after the first, to find the one that explains the rest."""
WATCHDOG_SECONDS = 60.0
"""How long one step may take before its process counts as hung."""
EXIT_SECONDS = 15.0
"""How long a clean stop, and then a killed process, may take."""


class RankFailedError(RuntimeError):
    """A rank ended before it was told to; the text names the rank and its error."""


class WorkerGroup:
    """Owns the placement group and the rank actors of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        device: Device = "cpu",
        watchdog_seconds: float = WATCHDOG_SECONDS,
    ) -> None:
        self._config, self._device = config, device
        self._watchdog_seconds = watchdog_seconds
        self._reservation: PlacementGroup | None = None
        self._actors: list[Any] = []
        self._places: list[RankPlace] = []
        self._sentinels: dict[int, Any] = {}
        self._cancelled = threading.Event()

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Node and process of every rank, in rank order."""
        return tuple(self._places)

    def start(self, token: str) -> LinkAddress:
        """Place, load and start every rank; returns where the coordinator waits for ``token``.

        Raises:
            ValueError: too few resources, or a configuration that a rank refused.
            TimeoutError: the resources did not become free.
            RankFailedError: a rank failed otherwise.
        """
        try:
            return self._start(token)
        except RankFailedError as error:
            self.kill()
            refusal = _cause(error.__cause__)
            if isinstance(refusal, ValueError):
                raise refusal from None
            raise
        except BaseException:
            self.kill()
            raise

    def _start(self, token: str) -> LinkAddress:
        config = self._config
        placement = placement_for(config, self._device)
        self._reservation = reserve(placement, timeout=RESERVE_SECONDS, cancelled=self._cancelled)
        for rank in range(config.num_ranks):
            self._actors.append(self._spawn(rank))
        ranks = dict(enumerate(self._actors))
        self._places = self._gather({rank: actor.place.remote() for rank, actor in ranks.items()})
        [address] = self._gather({0: ranks[0].open_store.remote()})
        self._gather({rank: actor.prepare.remote(address) for rank, actor in ranks.items()})
        coordinator = config.num_ranks - config.tensor_parallel_size
        [link] = self._gather({coordinator: ranks[coordinator].open_link.remote(token)})
        self._sentinels = {rank: actor.run.remote() for rank, actor in ranks.items()}
        assert isinstance(link, LinkAddress)
        return link

    def _spawn(self, rank: int) -> Any:
        assert self._reservation is not None
        threads = self._config.threads_per_rank(len(os.sched_getaffinity(0)))
        config = replace(self._config, num_threads=threads)
        options = ray.remote(VerifierRank).options(
            num_cpus=1,
            num_gpus=1 if self._device == "cuda" else 0,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._reservation,
                placement_group_bundle_index=rank // self._config.tensor_parallel_size,
            ),
            runtime_env={"env_vars": rank_environment(self._device, threads)},
        )
        return options.remote(rank, config, watchdog_seconds=self._watchdog_seconds)

    def _gather(self, calls: Mapping[int, Any]) -> list[Any]:
        """The results of one call on some ranks; the first failure ends the wait."""
        pending = list(calls.values())
        while pending:
            if self._cancelled.is_set():
                raise RankFailedError("the start was cancelled")
            done, pending = ray.wait(pending, timeout=GRACE_SECONDS)
            if any(_error_of(reference) is not None for reference in done):
                self._raise(calls)
        return ray.get(list(calls.values()))

    def check(self, timeout: float) -> None:
        """Return after ``timeout`` seconds if every rank still runs.

        Raises:
            RankFailedError: a rank has ended; the gang is of no more use.
        """
        if not self._sentinels:
            raise RankFailedError("the ranks were removed")
        ended, _ = ray.wait(list(self._sentinels.values()), timeout=timeout)
        if ended:
            self._raise(self._sentinels)

    def _raise(self, calls: Mapping[int, Any]) -> None:
        """Raise the failure that explains the others."""
        references = list(calls.values())
        ended, _ = ray.wait(references, num_returns=len(references), timeout=GRACE_SECONDS)
        errors = {rank: _error_of(ref) for rank, ref in calls.items() if ref in ended}
        rank, error = min(errors.items(), key=lambda item: _precedence(item[1]))
        raise RankFailedError(_sentence(rank, error, self._places)) from error

    def cancel_start(self) -> None:
        """Make a :meth:`start` that runs in another thread give up soon."""
        self._cancelled.set()

    def stop(self, timeout: float = EXIT_SECONDS) -> None:
        """After the coordinator was told to stop: wait for clean ends, then remove everything."""
        if self._sentinels:
            sentinels = list(self._sentinels.values())
            ray.wait(sentinels, num_returns=len(sentinels), timeout=timeout)
        self.kill()

    def kill(self) -> None:
        """Remove every actor, wait for its process to be gone, and free the reservation."""
        for actor in self._actors:
            ray.kill(actor)
        if self._reservation is not None:
            release(self._reservation)
        here = ray.get_runtime_context().get_node_id()
        wait_gone([place.pid for place in self._places if place.node_id == here], EXIT_SECONDS)
        self._actors, self._sentinels, self._reservation = [], {}, None


def rank_environment(device: Device, threads: int) -> dict[str, str]:
    """Variables that must be there before the rank's process imports torch.

    On GPUs Ray must not mask devices per rank: NCCL between masked ranks of one NVSwitch machine is
    slow or wrong (NVIDIA/nccl#1749, #1906). A CPU rank must not see a GPU, or it opens a context.
    """
    environment = {"OMP_NUM_THREADS": str(threads)}
    if device == "cuda":
        return {**environment, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    return {**environment, "CUDA_VISIBLE_DEVICES": ""}


def wait_gone(pids: Sequence[int], timeout: float) -> None:
    """Wait until these processes of this machine are gone; log those that stay."""
    deadline = time.monotonic() + timeout
    while alive := [pid for pid in pids if _is_alive(pid)]:
        if time.monotonic() > deadline:
            logger.error("processes %s did not end within %.0f s", alive, timeout)
            return
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _error_of(reference: Any) -> Exception | None:
    """The exception of a finished call; None for a result."""
    try:
        ray.get(reference)
    except RayError as error:
        return error
    return None


def _cause(error: BaseException | None) -> BaseException | None:
    """What the rank itself raised, without Ray's wrapping."""
    return error.cause if isinstance(error, RayTaskError) else error


def _precedence(error: Exception | None) -> int:
    """A refusal explains more than a death, a death more than a peer's broken connection."""
    if isinstance(_cause(error), ValueError):
        return 0
    if isinstance(error, RayActorError):
        return 1
    return 2 if error is not None else 3


def _sentence(rank: int, error: Exception | None, places: Sequence[RankPlace]) -> str:
    if error is None:
        return f"verifier rank {rank} ended although nobody stopped it"
    if isinstance(error, RayActorError):
        pid = f" (process {places[rank].pid})" if rank < len(places) else ""
        return f"verifier rank {rank}{pid} died"
    cause = _cause(error)
    return f"verifier rank {rank} failed: {type(cause).__name__}: {cause}"
