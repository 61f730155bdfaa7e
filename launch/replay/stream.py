"""A recorded answer in the place of the verifier and the neural drafter.

Policies, planner, row budget and verification are the engine's own. The verifier's arg-max is the
recorded token on the recorded path and nothing elsewhere; the drafter is right for as long as it
was when it was recorded; time is modelled, by a clock that only drafting moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drafters.assemble import new_copy_index
from engine.candidates import TokenTree
from engine.drafting import Drafting
from engine.judge import RowResults, judge
from engine.planning import StepPlanner
from engine.records import Draft, Request, SequenceView, StepRecord, VerifiedStep
from engine.request_stats import RequestStats
from engine.sequence import Sequence as RunningSequence
from engine.step_time import StepTimeTable
from launch.traces import Trace

NO_TOKEN = -1
"""No model has it: what the recorded path does not say."""
MAX_ROWS = 512
_NUM_PROBES = 2
"""SwitchSD's and the gate's: whichever a method listens to says what was recorded for it."""


@dataclass(slots=True)
class Clock:
    """Modelled seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


@dataclass(slots=True)
class RecordedDrafter:
    """Implements ``BatchDrafter`` for the trace that is being replayed."""

    clock: Clock
    seconds_per_token: float
    trace: Trace | None = None
    calls: int = field(default=0, init=False)

    def draft_batch(self, views: Sequence[SequenceView]) -> list[Draft]:
        """Chains that are right as far as they were."""
        return [self._draft(view) for view in views]

    def _draft(self, view: SequenceView) -> Draft:
        trace, length = self.trace, view.max_draft_tokens
        assert trace is not None, "a trace is being replayed"
        position = len(view.token_ids) - len(trace.prompt_ids)
        right = trace.output_ids[position : position + trace.neural_accepted(position)][:length]
        self.clock.now += (length + 1) * self.seconds_per_token
        self.calls += 1
        return Draft(source="neural", candidates=((*right, *[NO_TOKEN] * (length - len(right))),))

    def link_counts(self) -> Mapping[str, int]:
        """There is no link."""
        return {}

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a method would have done with some answers."""

    records: tuple[StepRecord, ...]

    @property
    def tokens_per_pass(self) -> float:
        """Output tokens per verifier pass."""
        return sum(step.output for step in self.records) / max(len(self.records), 1)


class Replay:
    """One method over many answers: what it learns of drafts is kept from answer to answer."""

    def __init__(
        self, drafting: Drafting, drafter: RecordedDrafter, step_times: StepTimeTable | None
    ) -> None:
        self._drafting, self._drafter = drafting, drafter
        self._reads_gate = drafting.speculation.reads_gate
        self._planner = StepPlanner(step_times, clock=drafter.clock)

    def run(self, traces: Sequence[Trace]) -> Replayed:
        """Walk through the answers."""
        records: list[StepRecord] = []
        for trace in traces:
            self._drafter.trace = trace
            records += self._walk(trace)
        return Replayed(records=tuple(records))

    def _scores(self, trace: Trace) -> Sequence[float]:
        return trace.gate_scores if self._reads_gate else trace.probe_scores

    def _walk(self, trace: Trace) -> list[StepRecord]:
        """The prompt's pass gives the first token; every other one is a step's."""
        sequence = RunningSequence(
            request=Request(
                request_id=trace.name,
                prompt_ids=trace.prompt_ids,
                max_tokens=len(trace.output_ids),
                output_ids=trace.output_ids[:1],
            ),
            slot=0,
            committed_length=len(trace.prompt_ids),
            copies=new_copy_index(self._drafting.policy.copy_index),
            max_model_len=len(trace.prompt_ids) + len(trace.output_ids) + 1,
            drafting=self._drafting,
            stats=RequestStats(arrived=0.0),
        )
        scores = self._scores(trace)
        sequence.probe_score = scores[0] if scores else None
        records = []
        while sequence.finish_reason is None:
            (tree,) = self._planner.trees([sequence], max_rows=MAX_ROWS, other_rows=0)
            records.append(self._verify(sequence, trace, tree))
        return records

    def _verify(self, sequence: RunningSequence, trace: Trace, tree: TokenTree) -> StepRecord:
        position = sequence.num_output_tokens
        results = _results(trace, position, tree, self._scores(trace))
        judgement = judge(
            sequence,
            sequence.decode_rows(tree),
            results,
            stop_ids=(),
            near_tie_margin=-1.0,
            verify_ms=0.0,
        )
        record = judgement.record
        self._planner.observe(sequence, record)
        sequence.chooser.observe(
            VerifiedStep(
                record=record,
                tree=tree,
                next_ids=results.next_ids,
                output_ids=trace.output_ids[position : position + record.output],
            )
        )
        return record


def _results(trace: Trace, position: int, tree: TokenTree, recorded: Sequence[float]) -> RowResults:
    """The recorded path's tokens at its nodes, ``NO_TOKEN`` at all others."""
    next_ids, scores = [NO_TOKEN] * len(tree.token_ids), [0.0] * len(tree.token_ids)
    children, node = tree.children(), 0
    for place in range(position, len(trace.output_ids)):
        next_ids[node] = trace.output_ids[place]
        if recorded:
            scores[node] = recorded[min(place, len(recorded) - 1)]
        following = children.get((node, trace.output_ids[place]))
        if following is None:
            break
        node = following
    return RowResults(
        next_ids=next_ids,
        margins=[1.0] * len(next_ids),
        probe_scores=[scores] * _NUM_PROBES if recorded else [],
        first_row=0,
    )
