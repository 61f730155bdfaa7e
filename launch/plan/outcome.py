"""From step times and acceptance to tokens per second, the best lookahead and row budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launch.plan.acceptance import Acceptance
from launch.plan.steptime import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a draft of some length would bring, for one of the batch's sequences."""

    length: int
    """Drafted tokens; 0 is plain decoding."""
    tokens_per_pass: float
    seconds: float
    """Drafting and verifying."""
    tokens_per_second: float
    """Of the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What runs at once."""

    context: float = 2048
    batch: int = 1


def drafter_seconds(model: StepTimeModel, *, context: float) -> float:
    """One token of a drafter of one verifier layer and its own vocabulary head: modelled."""
    whole = model.cost(1, context=context)
    layers = model.model.num_layers
    gap = model.machine["layer_gap"]
    return (whole.products + whole.attention + whole.all_reduce) / layers + whole.head + gap


def choices(
    model: StepTimeModel, load: Load, survival: Sequence[float], *, draft_seconds: float
) -> list[Choice]:
    """Plain decoding, then drafts of 1, 2, ... tokens of which ``survival`` are accepted."""
    found = []
    for length in range(len(survival) + 1):
        cost = model.cost(1 + length, context=load.context, batch=load.batch)
        seconds = cost.total + length * draft_seconds
        tokens = 1.0 + sum(survival[:length])
        found.append(
            Choice(
                length=length,
                tokens_per_pass=tokens,
                seconds=seconds,
                tokens_per_second=load.batch * tokens / seconds,
            )
        )
    return found


def best(found: Sequence[Choice]) -> Choice:
    """The most tokens per second."""
    return max(found, key=lambda choice: choice.tokens_per_second)


def best_row_budget(model: StepTimeModel, load: Load, acceptance: Acceptance) -> Choice:
    """Copied rows of one candidate; more candidates share the budget by their chances."""
    return best(choices(model, load, acceptance.copies, draft_seconds=0.0))
