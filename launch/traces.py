"""Recorded answers: JSON Lines, an answer per line.

``prompt_token_ids`` and ``generated_token_ids`` are the stream; an answer ends where the drafter's
record does. ``acc_eagle`` holds under ``acc_len``, per position i of the output, the tokens that a
pass emits when the neural drafter drafts behind the first i output tokens: what is accepted, and
the verifier's own. ``probe_scores`` and ``gate_scores``, where there are any, are what SwitchSD's
probe and the gate's own said on the row that emitted output token i.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One recorded answer."""

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    neural_lengths: tuple[int, ...]
    """Tokens per pass of the neural drafter by position."""
    copy_lengths: tuple[int, ...] = ()
    """The same of copying, where that was recorded (``acc_ngram``)."""
    probe_scores: tuple[float, ...] = ()
    """Copy intent."""
    gate_scores: tuple[float, ...] = ()
    """Whether a copy pays."""

    def neural_accepted(self, position: int) -> int:
        """Draft tokens that are right behind so many output tokens."""
        return self.neural_lengths[position] - 1


def load_traces(path: Path, *, limit: int | None = None) -> tuple[Trace, ...]:
    """The first ``limit`` answers of two output tokens or more.

    Raises:
        ValueError: a file that is missing, or a line that is no trace; one sentence.
    """
    if not path.is_file():
        raise ValueError(f"there is no trace file {path}.")
    traces: list[Trace] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if limit is not None and len(traces) >= limit:
                break
            try:
                trace = _trace(json.loads(line), f"{path.stem}/{number}")
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path.name} line {number} is not a trace: {error!r}.") from None
            if len(trace.output_ids) > 1:
                traces.append(trace)
    if not traces:
        raise ValueError(f"{path.name} has no traces.")
    return tuple(traces)


def _trace(fields: dict[str, object], name: str) -> Trace:
    lengths = _lengths(fields, "acc_eagle")
    return Trace(
        name=name,
        prompt_ids=_integers(fields["prompt_token_ids"]),
        output_ids=_integers(fields["generated_token_ids"])[: len(lengths)],
        neural_lengths=lengths,
        copy_lengths=_lengths(fields, "acc_ngram") if "acc_ngram" in fields else (),
        probe_scores=_scores(fields, "probe_scores"),
        gate_scores=_scores(fields, "gate_scores"),
    )


def _lengths(fields: dict[str, object], name: str) -> tuple[int, ...]:
    recorded = fields[name]
    if not isinstance(recorded, dict):
        raise TypeError(f"{name} must be an object")
    return _integers(recorded["acc_len"])


def _scores(fields: dict[str, object], name: str) -> tuple[float, ...]:
    return tuple(float(one) for one in _list(fields.get(name, [])))


def _integers(values: object) -> tuple[int, ...]:
    return tuple(int(one) for one in _list(values))


def _list(values: object) -> Sequence[float]:
    if not isinstance(values, list):
        raise TypeError(f"a list is needed, not {type(values).__name__}")
    return values
