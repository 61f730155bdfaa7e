"""The coordinator's side of a step: admit, plan the rows, and judge the answer.

Only the coordinator owns one of these; every other rank just executes the verdicts it writes.
"""

from __future__ import annotations

from dataclasses import replace

from engine.admission import Admission, CopyIndexFactory, SchedulerLimits
from engine.block import SequenceRows
from engine.control import Verdict
from engine.drafting import Drafters, Drafting
from engine.grammar import GrammarFactory
from engine.judge import BlockResult, Judgement, judge
from engine.kv_cache import Commit
from engine.planning import StepPlanner
from engine.records import Request, StepOutcome, VerifiedStep
from engine.sequence import Sequence
from engine.step_time import StepTimeTable


class Scheduler:
    """Turns requests into verdicts and results into tokens."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        drafting: Drafting,
        drafters: Drafters,
        new_copy_index: CopyIndexFactory,
        grammars: GrammarFactory | None = None,
        step_times: StepTimeTable | None,
    ) -> None:
        self._limits = limits
        self._planner = StepPlanner(step_times)
        self.admission = Admission(
            limits,
            drafting=drafting,
            drafters=drafters,
            new_copy_index=new_copy_index,
            grammars=grammars,
        )
        self._planned: list[Sequence] = []
        self._commits: list[Commit] = []
        self._step = 0

    def use(self, drafting: Drafting) -> None:
        """Draft with another method from now on; only while no request is running.

        What drafts cost and bring is kept per configuration, so methods can be interleaved.
        """
        assert not self.has_work, "the method may change between requests only"
        self.admission.use(drafting)

    def use_step_times(self, step_times: StepTimeTable | None) -> None:
        """Weigh drafts by these step times from now on."""
        self._planner.step_times = step_times

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.admission.num_waiting or self.admission.running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError if it cannot be served: see ``Admission.add``."""
        self.admission.add(request)

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot; an unknown id is ignored (it may have just ended)."""
        self.admission.cancel(request_id)

    @property
    def plain_seconds(self) -> float | None:
        """What the pass of the last step would have taken without drafts, if that was measured."""
        table = self._planner.step_times
        return None if table is None else table.at(max(1, len(self._planned))) / 1e3

    def link_counts(self) -> dict[str, int]:
        """What happened on the way to the neural drafter, by name."""
        drafter = self.admission.drafting.drafter
        return {} if drafter is None else dict(drafter.link_counts())

    def next_verdict(self) -> Verdict:
        """Admit, choose and draft: the accepted rows of the last step and the rows of the next."""
        self.admission.preempt()
        copies = self.admission.admit()
        rows = self._plan()
        self._step += 1
        commits, self._commits = tuple(self._commits), []
        return Verdict(
            step=self._step,
            commits=commits,
            copies=copies,
            rows=rows,
            projection=max((s.drafting.projection for s in self._planned), default=0),
        )

    def _plan(self) -> tuple[SequenceRows, ...]:
        """Decoding sequences first, each with its draft; prompt chunks fill what is left."""
        decoding = [s for s in self.admission.running.values() if not s.is_prefilling]
        prefilling = [s for s in self.admission.running.values() if s.is_prefilling]
        free = self._limits.max_rows
        waiting = sum(s.num_prefill_tokens - s.committed_length for s in prefilling)
        trees = self._planner.trees(
            decoding, max_rows=free, other_rows=min(waiting, free - len(decoding))
        )
        rows = [s.decode_rows(tree) for s, tree in zip(decoding, trees, strict=True)]
        self._planned = decoding
        free -= sum(len(tree.token_ids) for tree in trees)
        for sequence in prefilling:
            if free:
                rows.append(sequence.prompt_chunk(free))
                self._planned.append(sequence)
                free -= len(rows[-1].tree.token_ids)
        return tuple(rows)

    def conclude(self, verdict: Verdict, result: BlockResult, verify_ms: float) -> StepOutcome:
        """Judge each sequence's rows, note what to commit, and report tokens and records."""
        judgements = []
        for index, (sequence, rows) in enumerate(zip(self._planned, verdict.rows, strict=True)):
            found = result.of_sequence(index)
            judgement = judge(
                sequence,
                rows,
                found,
                stop_ids=sequence.request.stop_ids(self._limits.stop_ids),
                near_tie_margin=self._limits.near_tie_margin,
                verify_ms=verify_ms,
            )
            step = VerifiedStep(
                record=judgement.record,
                tree=rows.tree,
                next_ids=found.next_ids,
                output_ids=() if judgement.event is None else judgement.event.token_ids,
            )
            self._learn(sequence, step)
            judgements.append(self._apply(sequence, judgement))
        return StepOutcome(
            events=tuple(j.event for j in judgements if j.event is not None),
            records=tuple(j.record for j in judgements),
        )

    def _learn(self, sequence: Sequence, step: VerifiedStep) -> None:
        """What a draft has brought, for the planner and for the request's chooser."""
        record = step.record
        if record.source == "prefill":
            return
        self._planner.observe(sequence, record)
        sequence.chooser.observe(step)

    def _apply(self, sequence: Sequence, judgement: Judgement) -> Judgement:
        """Count; the accepted rows are committed with the next verdict."""
        sequence.stats.observe(judgement.record)
        self._commits.append(judgement.commit)
        if sequence.finish_reason is None:
            return judgement
        self.admission.release(sequence)
        assert judgement.event is not None, "a request ends with a token"
        return replace(judgement, event=replace(judgement.event, metrics=sequence.stats.metrics()))
