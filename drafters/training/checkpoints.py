"""Checkpoints of a training: whole or absent, and enough to go on with the same numbers.

A checkpoint is a folder ``step-00000500`` with the back end's files, every rank's random state and
``training.json``. It is written under another name and renamed when all ranks are done, so a killed
run leaves either the whole folder or one that the next run throws away. The place in the data and
the learning rate follow from the step. All ranks see the same folder: on several machines it lies
on a shared file system.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from drafters.training.backends import Backend
from drafters.training.config import TrainingConfig
from parallel.data_parallel import DataParallel, wait_for_all

KEPT = 2
"""Newest checkpoints that are kept."""

MAY_CHANGE = ("save_every", "evaluate_every", "num_threads", "backend")
"""Fields of a configuration that a resumed run may set otherwise; of the back end, the one in use
is compared instead of the name asked for."""

_PREFIX = "step-"
_PARTIAL = ".partial"
_FACTS = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a checkpoint and the run that resumes it must have in common."""

    config: TrainingConfig
    data: str
    """Fingerprint of the training transcripts."""
    world_size: int
    backend: str
    """Name of the back end in use."""

    def as_json(self) -> dict[str, Any]:
        """The facts as plain JSON values, one flat table."""
        config = {key: value for key, value in asdict(self.config).items() if key not in MAY_CHANGE}
        facts = {"data": self.data, "ranks": self.world_size, "backend": self.backend}
        plain: dict[str, Any] = json.loads(json.dumps(config | facts))
        return plain


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, facts: RunFacts, ranks: DataParallel) -> None:
        """Make the folder if it is missing and remove what a killed run left unfinished."""
        self._folder = folder
        self._facts = facts
        self._ranks = ranks
        if ranks.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob(f"{_PREFIX}*{_PARTIAL}"):
                shutil.rmtree(unfinished)
        wait_for_all(ranks)

    def save(self, step: int, backend: Backend) -> None:
        """Keep the state after ``step`` steps; collective."""
        final = self._folder / f"{_PREFIX}{step:08d}"
        partial = final.with_name(final.name + _PARTIAL)
        if self._ranks.is_first:
            partial.mkdir()
            facts = self._facts.as_json() | {"step": step}
            (partial / _FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        wait_for_all(self._ranks)
        backend.save(partial)
        torch.save(_random_state(), partial / self._random_name)
        wait_for_all(self._ranks)
        if self._ranks.is_first:
            _to_disk(partial)
            partial.rename(final)
            self._remove_old()
        wait_for_all(self._ranks)

    def restore(self, backend: Backend) -> int:
        """Load the newest checkpoint into the back end; returns its step, 0 without one.

        Raises:
            ValueError: the checkpoint is of another run: the first fact that differs is named.
        """
        found = self._finished()
        if not found:
            return 0
        newest = found[-1]
        facts = json.loads((newest / _FACTS).read_text())
        step = int(facts.pop("step"))
        _check_same(facts, self._facts.as_json(), newest)
        backend.load(newest)
        _set_random_state(torch.load(newest / self._random_name, weights_only=True))
        return step

    @property
    def _random_name(self) -> str:
        return f"random-{self._ranks.rank}.pt"

    def _finished(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(f"{_PREFIX}*") if path.suffix != _PARTIAL)

    def _remove_old(self) -> None:
        """Rename before removing, so that a half removed folder is never taken for a whole one."""
        for old in self._finished()[:-KEPT]:
            shutil.rmtree(old.rename(old.with_name(old.name + _PARTIAL)))


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        there, here = found.get(name), wanted.get(name)
        if there != here:
            raise ValueError(
                f"checkpoint {path} was written with {name}={there}, not {here}: resume with the "
                "same setting or take another output folder."
            )


def _random_state() -> dict[str, Any]:
    """The default generators' states: dropout draws from them."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": devices}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _to_disk(folder: Path) -> None:
    """Have the files on the disk before the name that vouches for them."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
