"""The one definition of each reported metric: pure functions of step records and timings.

Decode steps only are counted; prefill is timed apart. A rate whose denominator is zero is ``None``,
never a made-up number. Definitions follow vLLM where it has one: mean acceptance length there is
``block_efficiency`` here, and the accepted length of the SwitchSD paper excludes the verifier's own
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.records import Source, StepRecord

DraftSource = Literal["copy", "neural", "merged"]
DRAFT_SOURCES: tuple[DraftSource, ...] = ("copy", "neural", "merged")
DecodeSource = Literal["copy", "neural", "merged", "plain"]
DECODE_SOURCES: tuple[DecodeSource, ...] = (*DRAFT_SOURCES, "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One answer's output tokens and the seconds they took."""

    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A rate over prompts, both ways."""

    macro: float | None
    """Mean over prompts of tokens / time."""
    micro: float | None
    """Total tokens / total time."""


def decode_steps(records: Iterable[StepRecord]) -> list[StepRecord]:
    """The steps that decode: everything but prompt chunks."""
    return [record for record in records if record.source != "prefill"]


def accepted_length(records: Iterable[StepRecord], source: Source | None = None) -> float | None:
    """Accepted draft tokens per decode step (of one source), without the verifier's own token."""
    steps = [r for r in decode_steps(records) if source is None or r.source == source]
    return _ratio(sum(step.accepted for step in steps), len(steps))


def block_efficiency(records: Iterable[StepRecord]) -> float | None:
    """Output tokens per verifier pass, the verifier's own token included (τ).

    It is 1 + accepted / passes wherever no answer ends inside a block.
    """
    steps = decode_steps(records)
    return _ratio(sum(step.output for step in steps), len(steps))


def shares(records: Iterable[StepRecord]) -> dict[DecodeSource, float | None]:
    """Share of decode steps by source; the shares sum to 1."""
    steps = decode_steps(records)
    return {
        source: _ratio(sum(step.source == source for step in steps), len(steps))
        for source in DECODE_SOURCES
    }


def drafter_calls(records: Iterable[StepRecord]) -> dict[DecodeSource, int]:
    """Times that the neural drafter was asked, by the source of the step."""
    steps = decode_steps(records)
    return {
        source: sum(step.drafter_calls for step in steps if step.source == source)
        for source in DECODE_SOURCES
    }


def false_copy_rate(records: Iterable[StepRecord]) -> float | None:
    """Copy steps in which nothing was accepted / copy steps."""
    copies = [step for step in decode_steps(records) if step.source == "copy"]
    return _ratio(sum(step.accepted == 0 for step in copies), len(copies))


def tokens_per_second(timings: Sequence[Timing]) -> Rates:
    """Macro and micro rate; answers that took no measurable time are left out."""
    timed = [timing for timing in timings if timing.seconds > 0]
    rates = [timing.num_tokens / timing.seconds for timing in timed]
    return Rates(
        macro=_ratio(sum(rates), len(rates)),
        micro=_ratio(sum(t.num_tokens for t in timed), sum(t.seconds for t in timed)),
    )


def speedup(timings: Sequence[Timing], vanilla: Sequence[Timing]) -> Rates:
    """Rates relative to vanilla's on the same prompts; with equal answers a wall-time ratio."""
    ours, base = tokens_per_second(timings), tokens_per_second(vanilla)
    return Rates(macro=_relative(ours.macro, base.macro), micro=_relative(ours.micro, base.micro))


def roc_auc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Area under the ROC curve: the chance that a positive outscores a negative, ties half."""
    order = sorted(range(len(scores)), key=lambda index: scores[index])
    num_positive = sum(labels)
    num_negative = len(labels) - num_positive
    rank_sum = (
        sum(rank for index, rank in _midranks(order, scores) if labels[index])
        - num_positive * (num_positive + 1) / 2
    )
    return _ratio(rank_sum, num_positive * num_negative)


def f1_score(predictions: Sequence[bool], labels: Sequence[bool]) -> float | None:
    """Harmonic mean of precision and recall of the positive class."""
    pairs = list(zip(predictions, labels, strict=True))
    hits = sum(predicted and label for predicted, label in pairs)
    return _ratio(2 * hits, sum(predictions) + sum(labels))


def _midranks(order: Sequence[int], scores: Sequence[float]) -> list[tuple[int, float]]:
    """(index, rank from 1) in score order; equal scores share their mean rank."""
    ranked: list[tuple[int, float]] = []
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        ranked += [(index, (start + 1 + end) / 2) for index in order[start:end]]
        start = end
    return ranked


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _relative(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
