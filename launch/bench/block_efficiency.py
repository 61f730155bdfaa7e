"""Block efficiency over the position in the answer: do drafts get better as the context grows?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

BUCKET_TOKENS = 16


def by_position(steps: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Per label: (first token of a bucket, output tokens per pass of the passes that begin in it).

    ``steps`` are the journal's, in order within each answer.
    """
    place: dict[tuple[str, str, str], int] = defaultdict(lambda: 1)
    totals: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for step in steps:
        if step["source"] == "prefill":
            continue
        key = step["session"], step["label"], step["request"]
        bucket = totals[step["label"]][place[key] // BUCKET_TOKENS * BUCKET_TOKENS]
        bucket[0] += step["output"]
        bucket[1] += 1
        place[key] += step["output"]
    return {
        label: [(first, tokens / passes) for first, (tokens, passes) in sorted(buckets.items())]
        for label, buckets in totals.items()
    }


def write_block_efficiency(steps: Iterable[Mapping[str, Any]], directory: Path) -> None:
    """``block_efficiency.png``: a line per label over all workloads."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, points in by_position(steps).items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker=".", label=label)
    axes.set_xlabel("output tokens before the pass")
    axes.set_ylabel("output tokens per verifier pass")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(directory / "block_efficiency.png", dpi=120)
