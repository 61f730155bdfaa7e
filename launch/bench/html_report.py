"""``report.html``: tables and figures of a result directory as one page that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from launch.bench.tables import METHOD_COLUMNS, SETTING_KEYS, Cell, groups, ours

CAPTIONS = {
    "tokens_per_second.png": "Tokens per second while decoding, mean over prompts.",
    "tokens_per_pass.png": "Output tokens per verifier pass, the verifier's own token included.",
    "figure3.png": "SwitchSD's Figure 3: accepted tokens of copies by the probe's verdict.",
    "block_efficiency.png": "Output tokens per verifier pass over the position in the answer.",
}
"""Pictures that are shown when they are there, and what they show."""

_SPEED = ("speedup", "micro")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    texts: tuple[str, ...]
    is_best: bool
    loses: bool
    """Slower than plain decoding."""


def write_html(cells: Sequence[Cell], directory: Path, *, title: str = "Benchmark") -> None:
    """Write ``report.html`` beside the tables and pictures."""
    environment = Environment(
        loader=PackageLoader("launch.bench"), autoescape=select_autoescape(("html", "html.j2"))
    )
    found = [_group(group) for _, group in groups(cells)]
    text = environment.get_template("report.html.j2").render(
        title=title,
        headline=_headline(cells),
        exact=not sum(cell["mismatches"] for cell in ours(cells)),
        exactness=_exactness(cells),
        headings=[column.heading for column in METHOD_COLUMNS],
        speed_columns=[i for i, c in enumerate(METHOD_COLUMNS) if c.path[0] == "speedup"],
        groups=found,
        figures=_figures(directory),
        versions=_versions(cells),
    )
    (directory / "report.html").write_text(text, encoding="utf-8")


def _group(cells: Sequence[Cell]) -> dict[str, Any]:
    shown, best = ours(cells), _best(cells)
    return {
        "workload": cells[0]["workload"],
        "prompts": cells[0]["prompts"],
        "summary": _summary(shown),
        "rows": [_row(cell, is_best=cell is best) for cell in shown],
        "settings": " · ".join(f"{key} {cells[0][key]}" for key in SETTING_KEYS),
        "command": cells[0]["command"],
    }


def _row(cell: Cell, *, is_best: bool) -> _Row:
    speed = _speed(cell)
    return _Row(
        texts=tuple(column.text(cell) for column in METHOD_COLUMNS),
        is_best=is_best,
        loses=speed is not None and speed < 1.0,
    )


def _speed(cell: Cell) -> float | None:
    value: Any = cell
    for key in _SPEED:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, float) else None


def _best(cells: Sequence[Cell]) -> Cell | None:
    timed = [cell for cell in ours(cells) if _speed(cell) is not None]
    return max(timed, key=lambda cell: _speed(cell) or 0.0, default=None)


def _headline(cells: Sequence[Cell]) -> str:
    winners = [
        f"{best['label']} on {best['workload']} ({_speed(best):.2f} times plain decoding)"
        for _, group in groups(cells)
        if (best := _best(group)) is not None
    ]
    return f"Fastest: {'; '.join(winners)}." if winners else "Nothing has been measured yet."


def _summary(cells: Sequence[Cell]) -> str:
    """Who wins, and who loses against plain decoding."""
    best = _best(cells)
    if best is None:
        return "Nothing has been measured yet."
    losers = [str(cell["label"]) for cell in cells if (_speed(cell) or 1.0) < 1.0]
    lost = f" Slower than plain decoding: {', '.join(losers)}." if losers else ""
    return (
        f"{best['label']} is the fastest, {_speed(best):.2f} times plain decoding with "
        f"{best['block_efficiency']:.2f} tokens per pass.{lost}"
    )


def _exactness(cells: Sequence[Cell]) -> str:
    mine = ours(cells)
    equal, ties = (
        sum(cell[key] or 0 for cell in mine) for key in ("equal_to_vanilla", "near_ties")
    )
    wrong = sum(cell["mismatches"] for cell in mine)
    return (
        f"Of {equal + ties + wrong} answers {equal} equal plain decoding's token for token, {ties} "
        f"differ at a near-tie, {wrong} are wrong."
    )


def _figures(directory: Path) -> list[dict[str, str]]:
    return [
        {"caption": caption, "data": base64.b64encode((directory / name).read_bytes()).decode()}
        for name, caption in CAPTIONS.items()
        if (directory / name).is_file()
    ]


def _versions(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    return ", ".join(f"{name} {version}" for name, version in cells[0]["versions"].items())
