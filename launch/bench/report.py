"""Result files derived from the journal, and the tables on screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.bench.block_efficiency import write_block_efficiency
from launch.bench.html_report import write_html
from launch.bench.journal import Journal
from launch.bench.plots import write_plots
from launch.bench.tables import markdown, screen

_FILE_WIDTH = 120
"""Columns when the tables go to a file or a pipe."""


def write_report(journal: Journal, directory: Path) -> None:
    """Write ``cells.jsonl``, ``steps.jsonl``, ``table.md``, plots, ``report.html``; show tables."""
    cells = journal.cells()
    _write_lines(directory / "cells.jsonl", cells)
    _write_lines(directory / "steps.jsonl", journal.steps())
    (directory / "table.md").write_text(markdown(cells), encoding="utf-8")
    write_plots(cells, directory)
    if cells:
        write_block_efficiency(journal.steps(), directory)
    write_html(cells, directory)
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for table in screen(cells):
        console.print(table)
    console.print(f"written to {directory}", highlight=False)


def _write_lines(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file at once: a reader never sees half of it."""
    fresh = file.with_suffix(".partial")
    with fresh.open("w", encoding="utf-8") as output:
        for line in lines:
            output.write(json.dumps(line) + "\n")
    fresh.replace(file)
