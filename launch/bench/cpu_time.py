"""Processor time of running processes, all their threads together."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """User and system seconds so far; a process that is not on this machine counts nothing."""
    ticks = sum(_ticks(process_id) for process_id in process_ids)
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(process_id: int) -> int:
    """Fields 14 and 15 of /proc/PID/stat; the command before them may hold spaces."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
