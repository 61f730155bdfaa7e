"""From which copy intent on copying pays: thresholds of the gate, one per match length.

The probe's own threshold maximises F1 of the span labels. The gate is judged by something else: an
empty copy that it lets through costs a few rows, a good copy that it stops costs every token that
would have been accepted. The better the match alone predicts that, the lower the right threshold.
So recorded answers are replayed step by step, and the gate gets, per match length, the highest
threshold that keeps nearly all of the tokens per pass of copying on every match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from drafters.training.capture import CapturedStates, Transcript
from drafters.training.copy_labels import accepted_copy_lengths
from engine.probe import Probe

MATCH_LENGTHS = (2, 3, 4, 5)
"""Match lengths (kappa) that get a threshold."""

MAX_LOSS = 0.02
"""Share of the tokens per pass that the gate may cost."""

_THRESHOLDS = tuple(step / 100 for step in range(100))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReplay:
    """What a threshold would have done on recorded answers."""

    threshold: float
    num_passes: int
    """Verifier passes after the prompt's."""
    num_copies: int
    num_empty_copies: int
    """Copies of which no token was accepted."""

    @property
    def empty_share(self) -> float:
        """Empty copies per copy; 0 without copies."""
        return self.num_empty_copies / max(self.num_copies, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """Per generated token, what the gate saw behind it and what copying would have gained."""

    scores: Sequence[float]
    """Copy intent of the row that emitted the token."""
    gains: Sequence[int]
    """Tokens accepted of a copy behind the token; -1: no match."""


def record_answers(
    probe: Probe,
    captured: CapturedStates,
    transcripts: Mapping[int, Transcript],
    match_length: int,
) -> list[RecordedAnswer]:
    """The transcripts, by index, as the gate meets them; ``captured`` must hold all their rows."""
    place = captured.points.index((probe.layer, probe.site))
    answers = []
    for index, entry in transcripts.items():
        rows = captured.transcripts == index
        # The last row emits a token beyond the answer.
        scores: Tensor = probe.score(captured.states[place][rows])[:-1]
        gains = accepted_copy_lengths(
            entry.token_ids, len(entry.prompt_ids), match_length=match_length
        )
        assert len(scores) == len(gains), f"transcript {index} was not captured whole"
        answers.append(RecordedAnswer(scores=scores.tolist(), gains=gains.tolist()))
    return answers


def replay(answers: Sequence[RecordedAnswer], threshold: float) -> GateReplay:
    """Walk through the answers step by step; a pass emits one token more than it accepts."""
    num_passes, accepted = 0, []
    for answer in answers:
        pending = 0
        while pending < len(answer.gains) - 1:
            copies = answer.gains[pending] >= 0 and answer.scores[pending] >= threshold
            gain = answer.gains[pending] if copies else 0
            if copies:
                accepted.append(gain)
            pending += gain + 1
            num_passes += 1
    return GateReplay(
        threshold=threshold,
        num_passes=num_passes,
        num_copies=len(accepted),
        num_empty_copies=accepted.count(0),
    )


def choose_threshold(
    answers: Sequence[RecordedAnswer], max_loss: float = MAX_LOSS
) -> tuple[GateReplay, GateReplay]:
    """The gate always open, and the highest threshold that loses at most ``max_loss`` of it."""
    always = replay(answers, 0.0)
    replays = (replay(answers, threshold) for threshold in reversed(_THRESHOLDS))
    chosen = next(r for r in replays if always.num_passes >= (1 - max_loss) * r.num_passes)
    return always, chosen
