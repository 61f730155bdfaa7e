"""The coordinator's side of a step: admit, choose and draft, and judge the answer.

Only the coordinator owns one of these; every other rank just executes the verdicts it writes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.block import SequenceRows
from engine.candidates import TokenTree, chain, merge_candidates
from engine.config import SpeculationConfig
from engine.control import Verdict
from engine.drafting import Drafting
from engine.judge import BlockResult, Judgement, judge
from engine.kv_cache import Commit
from engine.records import CopyIndexShape, CopySource, Draft, Request, SequenceView, StepOutcome
from engine.row_budget import AcceptanceEstimate, worthwhile_rows
from engine.sequence import Sequence
from engine.step_time import StepTimeTable
from engine.token_sampler import TokenSampler

CopyIndexFactory = Callable[[CopyIndexShape], CopySource]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Sizes that requests and steps must respect."""

    num_slots: int
    """Sequences in the KV cache at once."""
    max_rows: int
    """Rows of one step."""
    max_model_len: int
    stop_ids: frozenset[int]
    near_tie_margin: float


class Scheduler:
    """Requests, slots and drafts; turns results into verdicts."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        drafting: Drafting,
        new_copy_index: CopyIndexFactory,
        step_times: StepTimeTable | None,
    ) -> None:
        self._limits = limits
        self._new_copy_index = new_copy_index
        self._step_times = step_times
        self._free_slots = list(range(limits.num_slots))[::-1]
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Sequence] = {}
        self._planned: list[Sequence] = []
        self._commits: list[Commit] = []
        self._step = 0
        self._estimates: dict[SpeculationConfig, AcceptanceEstimate] = {}
        self.use(drafting)

    def use(self, drafting: Drafting) -> None:
        """Draft with another method from now on; only while no request is running.

        Acceptance estimates are kept per configuration, so methods can be interleaved.
        """
        assert not self.has_work, "the method may change between requests only"
        self._drafting, self._policy = drafting, drafting.policy
        self._row_budget = drafting.speculation.row_budget
        self._estimate = self._estimates.setdefault(drafting.speculation, AcceptanceEstimate())

    def use_step_times(self, step_times: StepTimeTable | None) -> None:
        """Weigh drafts by these step times from now on."""
        self._step_times = step_times

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError for an empty or too long prompt or an id in use."""
        length = len(request.prompt_ids)
        if not 0 < length < self._limits.max_model_len:
            raise ValueError(
                f"the prompt has {length} tokens; with max_model_len {self._limits.max_model_len} "
                f"it must have 1 to {self._limits.max_model_len - 1}"
            )
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; it must be 1 or more")
        if self._is_known(request.request_id):
            raise ValueError(f"request id {request.request_id!r} is already in use")
        self._waiting.append(request)

    def _is_known(self, request_id: str) -> bool:
        waiting = any(request.request_id == request_id for request in self._waiting)
        return waiting or request_id in self._running

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot; an unknown id is ignored (it may have just ended)."""
        self._waiting = deque(r for r in self._waiting if r.request_id != request_id)
        if request_id in self._running:
            self._release(self._running[request_id])

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.request.request_id]
        self._free_slots.append(sequence.slot)
        self._commits = [commit for commit in self._commits if commit.slot != sequence.slot]
        self._drafting.forget(sequence.request.request_id)

    def next_verdict(self) -> Verdict:
        """Admit, choose and draft: the accepted rows of the last step and the rows of the next."""
        self._admit()
        rows = self._plan()
        self._step += 1
        commits, self._commits = tuple(self._commits), []
        return Verdict(
            step=self._step, commits=commits, rows=rows, projection=self._drafting.projection
        )

    def _admit(self) -> None:
        while self._waiting and self._free_slots:
            request = self._waiting.popleft()
            self._running[request.request_id] = Sequence(
                request=request,
                slot=self._free_slots.pop(),
                copies=self._new_copy_index(self._policy.copy_index),
                max_model_len=self._limits.max_model_len,
                sampler=self._sampler(request),
            )

    def _sampler(self, request: Request) -> TokenSampler | None:
        if not request.sampling.is_shaped:
            return None
        return TokenSampler(
            request.sampling,
            prompt_ids=request.prompt_ids,
            stop_ids=request.stop_ids(self._limits.stop_ids),
        )

    def _plan(self) -> tuple[SequenceRows, ...]:
        """Decoding sequences first, each with its draft; prompt chunks fill what is left."""
        planned, rows, free_rows = [], [], self._limits.max_rows
        decoding = [s for s in self._running.values() if not s.is_prefilling]
        for index, sequence in enumerate(decoding):
            reserved = (
                len(decoding) - index - 1
            )  # every later sequence gets its pending row at least
            tree = self._draft(sequence, free_rows - reserved, other_rows=reserved)
            rows.append(sequence.decode_rows(tree))
            planned.append(sequence)
            free_rows -= len(tree.token_ids)
        for sequence in [s for s in self._running.values() if s.is_prefilling]:
            if free_rows:
                chunk = sequence.prompt_chunk(free_rows)
                rows.append(chunk)
                planned.append(sequence)
                free_rows -= len(chunk.tree.token_ids)
        self._planned = planned
        return tuple(rows)

    def _draft(self, sequence: Sequence, max_nodes: int, *, other_rows: int) -> TokenTree:
        """Choose a drafter, ask it, and keep the rows that are worth their time."""
        started, calls = time.perf_counter(), self._drafting.drafter_calls
        view = sequence.view()
        draft = self._policy.draft(view) if view.max_draft_tokens > 0 else Draft()
        tree = self._tree(view, draft, max_nodes, other_rows)
        if len(tree.token_ids) == 1:
            draft = Draft()
        sequence.draft = replace(draft, candidates=())
        sequence.draft_ms = (time.perf_counter() - started) * 1e3
        sequence.drafter_calls = self._drafting.drafter_calls - calls
        return tree

    def _tree(self, view: SequenceView, draft: Draft, max_nodes: int, other_rows: int) -> TokenTree:
        pending = view.token_ids[-1]
        if not draft.candidates:
            return chain([pending])
        candidates = [candidate[: view.max_draft_tokens] for candidate in draft.candidates]
        if isinstance(self._row_budget, int):
            return merge_candidates(pending, candidates, min(max_nodes, self._row_budget))
        tree = merge_candidates(pending, candidates, max_nodes)
        if self._row_budget == "full":
            return tree
        probabilities = self._estimate.node_probabilities(draft, tree)
        if self._step_times is None:
            return tree
        kept = worthwhile_rows(tree, probabilities, self._step_times, other_rows=other_rows)
        if len(kept.token_ids) == 1:
            self._estimate.relax(draft)
        return kept

    def conclude(self, verdict: Verdict, result: BlockResult, verify_ms: float) -> StepOutcome:
        """Judge each sequence's rows, note what to commit, and report tokens and records."""
        judgements = []
        for index, (sequence, rows) in enumerate(zip(self._planned, verdict.rows, strict=True)):
            judgement = judge(
                sequence,
                rows,
                result.of_sequence(index),
                stop_ids=sequence.request.stop_ids(self._limits.stop_ids),
                near_tie_margin=self._limits.near_tie_margin,
                verify_ms=verify_ms,
            )
            self._apply(sequence, rows, judgement)
            judgements.append(judgement)
        return StepOutcome(
            events=tuple(j.event for j in judgements if j.event is not None),
            records=tuple(j.record for j in judgements),
        )

    def _apply(self, sequence: Sequence, rows: SequenceRows, judgement: Judgement) -> None:
        """Move the sequence on; its accepted rows are committed with the next verdict."""
        if sequence.draft.source != "plain":
            self._estimate.observe(
                sequence.draft, accepted=judgement.record.accepted, deepest=max(rows.tree.depths)
            )
        if sequence.finish_reason is not None:
            self._release(sequence)
        else:
            self._commits.append(judgement.commit)
