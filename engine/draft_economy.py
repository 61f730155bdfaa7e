"""Whether asking the neural drafter pays at the present load.

Asking costs its time before the pass, and the drafted rows cost theirs within it. A lone stream
gains; in a full batch a pass is busy with one row per sequence, and the same draft makes everybody
wait (vLLM's own figures: up to 1.8 times slower at 10 requests a second). The decision has
hysteresis, because load swings around any limit (vllm#49548), and while it is off the drafter is
tried now and then, soon at first and ever more rarely, because rates are only learned from drafts.
Times are medians: a few calls that lost a time slice to somebody else say nothing of the drafter.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from engine.gate_features import CopyCalibration
from engine.records import Draft
from engine.row_budget import AcceptanceEstimate
from engine.step_time import StepTimeTable

RETURN_MARGIN = 1.05
"""How much faster drafting must look before it is taken up again."""
FIRST_TRIAL_STEPS, TRIAL_STEPS = 8, 128
"""Steps without the drafter after which one step tries it: doubled at each trial, up to a limit."""
_TIMES_KEPT = 15
_LOOKAHEAD_WEIGHT = 0.02
_HOPE_WEIGHT = 0.01
_PRIOR_ACCEPTANCE = 0.6
_NEURAL = Draft(source="neural")


@dataclass(slots=True)
class TypicalTime:
    """The median of the last few times."""

    _newest: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))
    milliseconds: float = 0.0
    """0 before anything is known."""

    def observe(self, milliseconds: float) -> None:
        """One more."""
        self._newest.append(milliseconds)
        self.milliseconds = statistics.median(self._newest)


@dataclass(slots=True)
class LookaheadCounts:
    """How far neural drafts go and hold: moving averages by place in the chain."""

    drafted: list[float] = field(default_factory=list)
    """Share of the drafts that have a token at each place."""
    accepted: list[float] = field(default_factory=list)
    """Share of the drafts whose token there was accepted."""
    call: TypicalTime = field(default_factory=TypicalTime)
    """One forward pass of the drafter: a draft of n tokens takes n + 1 of them."""

    def observe(self, *, asked: int, drafted: int, accepted: int) -> None:
        """A draft of at most ``asked`` tokens had ``drafted``, of which ``accepted`` were right.

        Nothing is learned of deeper places, and whoever finds one bad would never ask for it again:
        they slowly rise to what a chain as good as the first token would have there.
        """
        self._reach(asked)
        for place in range(asked):
            self.drafted[place] += _LOOKAHEAD_WEIGHT * ((place < drafted) - self.drafted[place])
            self.accepted[place] += _LOOKAHEAD_WEIGHT * ((place < accepted) - self.accepted[place])
        for place in range(max(asked, 1), len(self.accepted)):
            hoped = self.accepted[0] * self.accepted[place - 1]
            self.accepted[place] += _HOPE_WEIGHT * max(hoped - self.accepted[place], 0.0)
            missing = self.drafted[place - 1] - self.drafted[place]
            self.drafted[place] += _HOPE_WEIGHT * max(missing, 0.0)

    def observe_time(self, milliseconds: float, drafted: int) -> None:
        """A draft of so many tokens took so long."""
        self.call.observe(milliseconds / (drafted + 1))

    def expected(self, depth: int) -> list[tuple[float, float, float]]:
        """Tokens accepted, rows and milliseconds of a draft of at most 1, 2, ... ``depth``."""
        self._reach(depth)
        found, tokens, rows = [], 0.0, 0.0
        for place in range(depth):
            tokens += self.accepted[place]
            rows += self.drafted[place]
            found.append((tokens, rows, (rows + 1) * self.call.milliseconds))
        return found

    def acceptance(self) -> list[float]:
        """Share of the tokens drafted at each place that were accepted."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return [accepted / max(drafted, 1e-3) for accepted, drafted in pairs]

    def _reach(self, depth: int) -> None:
        for place in range(len(self.drafted), depth):
            self.drafted.append(1.0)
            self.accepted.append(_PRIOR_ACCEPTANCE ** (place + 1))


@dataclass(slots=True)
class DraftEconomy:
    """What one configuration's neural drafts cost and bring."""

    estimate: AcceptanceEstimate
    time: TypicalTime = field(default_factory=TypicalTime)
    """What asking for one draft takes."""
    is_on: bool = True
    lookahead: LookaheadCounts = field(default_factory=LookaheadCounts)
    calibration: CopyCalibration = field(default_factory=CopyCalibration)
    """Of the gate, where there is one."""
    _steps_off: int = field(default=0, init=False)
    _trial_steps: int = field(default=FIRST_TRIAL_STEPS, init=False)

    def observe(self, milliseconds: float, num_asked: int) -> None:
        """Learn what asking for so many drafts at once took."""
        self.time.observe(milliseconds / num_asked)

    def pays(self, table: StepTimeTable, *, num_wishes: int, depth: int, other_rows: int) -> bool:
        """Whether to ask for ``num_wishes`` drafts of ``depth`` tokens.

        ``other_rows`` are the pass's rows without any draft, beside the wishes' pending rows.
        """
        gain = self._gain(table, num_wishes=num_wishes, depth=depth, other_rows=other_rows)
        self.is_on = gain >= (1.0 if self.is_on else RETURN_MARGIN)
        if self.is_on:
            self._steps_off, self._trial_steps = 0, FIRST_TRIAL_STEPS
        return self.is_on or self._is_trial()

    def _is_trial(self) -> bool:
        """Whether a step without the drafter is one that tries it."""
        self._steps_off += 1
        if self._steps_off < self._trial_steps:
            return False
        self._steps_off, self._trial_steps = 0, min(2 * self._trial_steps, TRIAL_STEPS)
        return True

    def _gain(self, table: StepTimeTable, *, num_wishes: int, depth: int, other_rows: int) -> float:
        """Expected tokens per time with the drafts, relative to without, at the best depth."""
        rows = other_rows + num_wishes
        rates = self.estimate.chain_probabilities(_NEURAL, depth)
        asking = self.time.milliseconds * num_wishes
        tokens, best = float(rows), 0.0
        for drafted, probability in enumerate(rates, start=1):
            tokens += probability * num_wishes
            best = max(best, tokens / (table.at(rows + drafted * num_wishes) + asking))
        return best * table.at(rows) / rows
