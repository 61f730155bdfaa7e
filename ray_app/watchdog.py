"""Ends a process whose step does not end: a hung peer holds a collective for ever otherwise.

The stacks of all threads are written first. Whoever watches the process sees it die and rebuilds
the gang; nothing cleaner is possible, because the thread that hangs cannot be interrupted.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

EXIT_CODE = 86
_LOOKS = 10
"""Times that the clock is looked at within the limit."""


def end_process() -> None:
    """Write all stacks and end at once."""
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
    os._exit(EXIT_CODE)


class Watchdog:
    """Calls ``on_hang`` when something that is watched takes longer than ``seconds``."""

    def __init__(self, seconds: float, on_hang: Callable[[], None] = end_process) -> None:
        self._seconds, self._on_hang = seconds, on_hang
        self._since: float | None = None
        thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        thread.start()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What happens inside must end in time."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def _look(self) -> None:
        while True:
            time.sleep(self._seconds / _LOOKS)
            since = self._since
            if since is not None and time.monotonic() - since > self._seconds:
                logger.critical("a step has taken more than %.0f s: giving up", self._seconds)
                self._on_hang()
                return
