"""Cells to tables for reading: the same columns on screen and in ``table.md``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

Cell = Mapping[str, Any]

SETTING_KEYS = (
    "workload",
    "recipe",
    "model",
    "dtype",
    "exactness",
    "kernels",
    "threads",
    "tp",
    "pp",
    "prompts",
    "max_tokens",
    "temperature",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading and where its number comes from."""

    heading: str
    path: tuple[str, ...]
    form: str = "{:.2f}"
    scale: float = 1.0

    def text(self, cell: Cell) -> str:
        """The cell's number in this column; a dash where there is none."""
        value: Any = cell
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return "-"
        return self.form.format(value * self.scale if self.scale != 1.0 else value)


METHOD_COLUMNS = (
    Column(heading="method", path=("label",), form="{}"),
    Column(heading="tokens/pass", path=("block_efficiency",), form="{:.3f}"),
    Column(heading="accepted per copy", path=("accepted_length", "copy")),
    Column(heading="copy steps %", path=("share", "copy"), form="{:.1f}", scale=100),
    Column(heading="empty copies %", path=("false_copy_rate",), form="{:.1f}", scale=100),
    Column(heading="accepted per neural draft", path=("accepted_length", "neural")),
    Column(heading="neural steps %", path=("share", "neural"), form="{:.1f}", scale=100),
    Column(heading="drafter calls in copy steps", path=("drafter_calls", "copy"), form="{}"),
    Column(heading="drafting s", path=("draft_seconds",)),
    Column(heading="tok/s macro", path=("tokens_per_second", "macro"), form="{:.1f}"),
    Column(heading="tok/s micro", path=("tokens_per_second", "micro"), form="{:.1f}"),
    Column(heading="speedup macro", path=("speedup", "macro")),
    Column(heading="speedup micro", path=("speedup", "micro")),
    Column(heading="70B on 8 H100 (modelled)", path=("modelled_speedup",)),
    Column(heading="equal", path=("equal_to_vanilla",), form="{}"),
    Column(heading="near-ties", path=("near_ties",), form="{}"),
    Column(heading="mismatches", path=("mismatches",), form="{}"),
    Column(heading="cores", path=("cores_used",)),
)

SCREEN_COLUMNS = (
    Column(heading="method", path=("label",), form="{}"),
    Column(heading="tok/ pass", path=("block_efficiency",)),
    Column(heading="acc/ copy", path=("accepted_length", "copy"), form="{:.1f}"),
    Column(heading="copy %", path=("share", "copy"), form="{:.0f}", scale=100),
    Column(heading="empty %", path=("false_copy_rate",), form="{:.0f}", scale=100),
    Column(heading="acc/ draft", path=("accepted_length", "neural"), form="{:.1f}"),
    Column(heading="tok/s", path=("tokens_per_second", "macro"), form="{:.1f}"),
    Column(heading="speed up", path=("speedup", "macro")),
    Column(heading="70B mod.", path=("modelled_speedup",)),
    Column(heading="equal", path=("equal_to_vanilla",), form="{}"),
    Column(heading="near tie", path=("near_ties",), form="{}"),
    Column(heading="mis- match", path=("mismatches",), form="{}"),
    Column(heading="cores", path=("cores_used",)),
)

SYSTEM_COLUMNS = (
    Column(heading="system", path=("label",), form="{}"),
    Column(heading="tok/s macro", path=("answer_tokens_per_second", "macro"), form="{:.1f}"),
    Column(heading="tok/s micro", path=("answer_tokens_per_second", "micro"), form="{:.1f}"),
    Column(heading="over own plain", path=("answer_speedup", "micro")),
    Column(heading="tokens/pass", path=("block_efficiency",), form="{:.3f}"),
    Column(heading="equal to own plain", path=("equal_to_vanilla",), form="{}"),
    Column(heading="of", path=("prompts",), form="{}"),
    Column(heading="cores", path=("cores_used",)),
    Column(heading="sleepers' cores", path=("cores_used_by_others",)),
)


def groups(cells: Iterable[Cell]) -> list[tuple[str, list[Cell]]]:
    """Cells that share all settings, under a line that says them."""
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        title = " · ".join(f"{key} {cell[key]}" for key in SETTING_KEYS)
        grouped.setdefault(title, []).append(cell)
    return list(grouped.items())


def markdown(cells: Sequence[Cell]) -> str:
    """All tables as text."""
    parts = []
    for title, group in groups(cells):
        parts += [f"### {title}", "", _markdown_table(METHOD_COLUMNS, ours(group)), ""]
        if len(ours(group)) < len(group):
            parts += [_SYSTEMS_NOTE, "", _markdown_table(SYSTEM_COLUMNS, group), ""]
        parts += [f"Command: `{group[0]['command']}`", ""]
    return "\n".join(parts)


_SYSTEMS_NOTE = (
    "Against other libraries, same run, interleaved prompt by prompt; the time is the whole "
    "answer's, prefill and decoding, on both sides."
)


def screen(cells: Sequence[Cell]) -> list[Table]:
    """The same tables for the terminal, narrow enough for eighty columns."""
    tables = []
    for title, group in groups(cells):
        tables.append(_rich_table(title, SCREEN_COLUMNS, ours(group)))
        if len(ours(group)) < len(group):
            tables.append(_rich_table(_SYSTEMS_NOTE, SYSTEM_COLUMNS, group))
    return tables


def ours(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of our own engine."""
    return [cell for cell in cells if cell["system"] == "switchsteer"]


def _markdown_table(columns: Sequence[Column], cells: Sequence[Cell]) -> str:
    lines = [
        "| " + " | ".join(column.heading for column in columns) + " |",
        "|" + "|".join("---" if index == 0 else "---:" for index in range(len(columns))) + "|",
    ]
    lines += ["| " + " | ".join(column.text(cell) for column in columns) + " |" for cell in cells]
    return "\n".join(lines)


def _rich_table(title: str, columns: Sequence[Column], cells: Sequence[Cell]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        if index == 0:
            table.add_column(column.heading, overflow="fold", min_width=13)
        else:
            width = max((len(column.text(cell)) for cell in cells), default=1)
            table.add_column(column.heading, justify="right", min_width=width)
    for cell in cells:
        table.add_row(*(column.text(cell) for column in columns))
    return table
