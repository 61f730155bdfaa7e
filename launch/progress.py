"""Progress bars of the long commands: a line per stage, with the time that is left."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LOGGER = logging.getLogger(__name__)


def progress_bar() -> Progress:
    """A bar for the stages of one command; a context manager."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )


def stage_progress(bar: Progress, title: str, total: int) -> Callable[[int], None]:
    """Add a stage; the function returned takes how much more of it is done."""
    _LOGGER.info("%s: %d", title, total)
    task = bar.add_task(title, total=total)
    return lambda done: bar.advance(task, done)
