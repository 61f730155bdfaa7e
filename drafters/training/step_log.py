"""What a training tells: a JSON line per step, a progress bar, and log lines where there is none.

``training.jsonl`` has one line per step, ``validation.jsonl`` one per pass over the validation
transcripts. A resumed run first drops the lines after its checkpoint, so the files read as if the
run had never been interrupted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from drafters.training.task import ACCEPTANCE
from parallel.data_parallel import DataParallel

TRAINING_LOG = "training.jsonl"
VALIDATION_LOG = "validation.jsonl"

Line = Mapping[str, float]
"""Numbers by name; "step" counts finished steps."""

_LOGGER = logging.getLogger(__name__)
_LOG_LINES = 20
"""Log lines over a whole run, for whoever sees no bar."""


class StepLog:
    """Writes and shows lines on the first rank; does nothing on the others."""

    def __init__(
        self, folder: Path, ranks: DataParallel, *, total_steps: int, done_steps: int
    ) -> None:
        """Open the files in ``folder``, keeping the lines of the first ``done_steps`` steps."""
        self._shows = ranks.is_first
        self._total_steps = total_steps
        self._files: dict[str, IO[str]] = {}
        if not self._shows:
            return
        for name in (TRAINING_LOG, VALIDATION_LOG):
            keep_steps(folder / name, done_steps)
            self._files[name] = (folder / name).open("a")
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(
            "training", total=total_steps, completed=done_steps, numbers=""
        )

    def __enter__(self) -> Self:
        if self._shows:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shows:
            self._bar.stop()
        for file in self._files.values():
            file.close()

    def step(self, line: Line) -> None:
        """A finished step: loss, acceptance and tokens_per_second are shown."""
        if not self._shows:
            return
        self._write(TRAINING_LOG, line)
        numbers = (
            f"loss {line['loss']:.4f}  acceptance {line[ACCEPTANCE]:.3f}  "
            f"{line['tokens_per_second']:,.0f} tokens/s"
        )
        self._bar.update(self._task, completed=line["step"], numbers=numbers)
        if line["step"] % max(1, self._total_steps // _LOG_LINES) == 0:
            _LOGGER.info("step %d of %d: %s", line["step"], self._total_steps, numbers)

    def validation(self, line: Line) -> None:
        """A finished pass over the validation transcripts."""
        if not self._shows:
            return
        self._write(VALIDATION_LOG, line)
        _LOGGER.info(
            "validation after step %d: loss %.4f, acceptance %.3f",
            line["step"],
            line["loss"],
            line[ACCEPTANCE],
        )

    def _write(self, name: str, line: Line) -> None:
        self._files[name].write(json.dumps(dict(line)) + "\n")
        self._files[name].flush()


def keep_steps(path: Path, done_steps: int) -> None:
    """Drop lines of later steps, and a last line that a killed run left half written."""
    if not path.exists():
        return
    complete = path.read_text().rpartition("\n")[0].splitlines()
    kept = [line for line in complete if json.loads(line)["step"] <= done_steps]
    beside = path.with_name(path.name + ".partial")
    beside.write_text("".join(line + "\n" for line in kept))
    beside.rename(path)


def read_log(path: Path) -> list[dict[str, float]]:
    """All lines of a finished or resumed run's log."""
    return [json.loads(line) for line in path.read_text().splitlines()]
