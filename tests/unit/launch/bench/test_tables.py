"""Tables and plots from fixed cells."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.bench.cells import Answer, Row, make_cell
from launch.bench.plots import write_plots
from launch.bench.tables import markdown, screen
from tests.unit.launch.bench.runs import COPY, SETTINGS, VANILLA, copy_run, plain_run

TOKENS = (7, 1, 2, 3, 4, 5)
PEER = Row(label="vllm:plain", method="vllm:plain", system="vllm", base="vllm:plain")


def cells(*rows: Row) -> list[dict[str, Any]]:
    base = plain_run(TOKENS, seconds=5.0)
    runs = {"vanilla": base, "copy_spec": copy_run(TOKENS, seconds=2.0), "vllm:plain": base}
    return [
        make_cell(
            SETTINGS,
            row,
            [Answer(prompt="p", prompt_length=3, run=runs[row.method], base=base)],
            command="python -m launch.bench",
            versions={},
        )
        for row in rows
    ]


def test_markdown_is_one_table_per_settings_with_a_dash_for_no_number() -> None:
    text = markdown(cells(VANILLA, COPY))
    assert text.count("### workload w · recipe r") == 1
    assert "| vanilla | 1.000 | - | 0.0 | - | - | 0.0 | 0 | 0.01 | 1.0 | 1.0 |" in text
    assert "| copy_spec:x=1 | 2.500 | 1.50 | 100.0 | 50.0 | - | 0.0 |" in text
    assert "| 2.5 | 2.5 | 2.50 | 2.50 | 2.33 | 1 | 0 | 0 |" in text
    assert "`python -m launch.bench`" in text
    assert "other libraries" not in text


def test_peers_get_a_table_of_whole_answers() -> None:
    text = markdown(cells(VANILLA, PEER))
    assert text.count("| vllm:plain |") == 1
    assert "the time is the whole answer's" in text


def test_screen_tables_show_every_row() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    for table in screen(cells(VANILLA, COPY, PEER)):
        console.print(table)
    text = console.export_text()
    assert text.count("vanilla") == 2, "once among the methods, once among the systems"
    assert text.count("vllm:plain") == 1


def test_plots_are_written(tmp_path: Path) -> None:
    write_plots(cells(VANILLA, COPY, PEER), tmp_path)
    for name in ("tokens_per_second.png", "tokens_per_pass.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_no_cells_no_plots(tmp_path: Path) -> None:
    write_plots([], tmp_path)
    assert list(tmp_path.iterdir()) == []
