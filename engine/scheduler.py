"""The coordinator's side of a step: admit, plan the rows, and judge the answer.

Only the coordinator owns one of these; every other rank just executes the verdicts it writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.block import SequenceRows
from engine.control import Verdict
from engine.drafting import Drafters, Drafting
from engine.judge import BlockResult, Judgement, judge
from engine.kv_cache import Commit, KVCopy
from engine.planning import StepPlanner
from engine.records import CopyIndexShape, CopySource, Request, StepOutcome
from engine.sequence import Sequence
from engine.slots import PrefixCounters, SlotPool
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
    vocab_size: int
    max_kv_tokens: int | None = None
    """Tokens of all running sequences together; None: what the slots hold."""
    reuses_prefixes: bool = True


class Scheduler:
    """Requests, slots and drafts; turns results into verdicts."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        drafting: Drafting,
        drafters: Drafters,
        new_copy_index: CopyIndexFactory,
        step_times: StepTimeTable | None,
    ) -> None:
        self._limits = limits
        self._new_copy_index = new_copy_index
        self._drafters = drafters
        self._planner = StepPlanner(step_times)
        self._slots = SlotPool(limits.num_slots, reuses_prefixes=limits.reuses_prefixes)
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Sequence] = {}
        self._planned: list[Sequence] = []
        self._commits: list[Commit] = []
        self._copies: list[KVCopy] = []
        self._step = 0
        self.num_preemptions = 0
        self.use(drafting)

    def use(self, drafting: Drafting) -> None:
        """Draft with another method from now on; only while no request is running.

        What drafts cost and bring is kept per configuration, so methods can be interleaved.
        """
        assert not self.has_work, "the method may change between requests only"
        self._drafting = drafting
        self._slots.forget()

    def use_step_times(self, step_times: StepTimeTable | None) -> None:
        """Weigh drafts by these step times from now on."""
        self._planner.step_times = step_times

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._running)

    @property
    def num_free_slots(self) -> int:
        """Slots without a request."""
        return self._slots.num_free

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of all running sequences."""
        return sum(len(sequence.token_ids) for sequence in self._running.values())

    @property
    def prefix_counters(self) -> PrefixCounters:
        """Tokens that new requests asked for, and those that slots still held."""
        return self._slots.counters

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: an empty or too long prompt, an id in use, a token id that the model does
                not know, or a drafter that is not loaded.
        """
        self._check_length(request)
        self._check_token_ids(request)
        if self._is_known(request.request_id):
            raise ValueError(f"request id {request.request_id!r} is already in use")
        drafting = self._drafting_of(request)
        if drafting.projection not in (0, self._drafting.projection):
            raise ValueError(
                f"drafter {drafting.speculation.drafter!r} is loaded, but not the one in use"
            )
        self._waiting.append(request)

    def _check_length(self, request: Request) -> None:
        length = len(request.known_ids)
        if not (request.prompt_ids and length < self._limits.max_model_len):
            raise ValueError(
                f"the prompt has {length} tokens; with max_model_len {self._limits.max_model_len} "
                f"it must have 1 to {self._limits.max_model_len - 1}"
            )
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; it must be 1 or more")

    def _check_token_ids(self, request: Request) -> None:
        known = range(self._limits.vocab_size)
        biased = (token for token, _ in request.sampling.logit_bias)
        for name, tokens in (("the prompt", request.known_ids), ("logit_bias", biased)):
            unknown = next((token for token in tokens if token not in known), None)
            if unknown is not None:
                raise ValueError(
                    f"{name} has token id {unknown}; this model knows ids 0 to {known.stop - 1}"
                )

    def _drafting_of(self, request: Request) -> Drafting:
        if request.speculation in (None, self._drafting.speculation):
            return self._drafting
        assert request.speculation is not None
        return self._drafters.drafting(request.speculation)

    def _is_known(self, request_id: str) -> bool:
        waiting = any(request.request_id == request_id for request in self._waiting)
        return waiting or request_id in self._running

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot; an unknown id is ignored (it may have just ended)."""
        self._waiting = deque(r for r in self._waiting if r.request_id != request_id)
        if request_id in self._running:
            self._release(self._running[request_id])

    def _release(self, sequence: Sequence) -> None:
        """Its last rows are still committed: what the slot holds may serve another request."""
        del self._running[sequence.request.request_id]
        self._slots.release(sequence.prefix)
        sequence.drafting.forget(sequence.request.request_id)

    def next_verdict(self) -> Verdict:
        """Admit, choose and draft: the accepted rows of the last step and the rows of the next."""
        self._preempt()
        self._admit()
        rows = self._plan()
        self._step += 1
        commits, self._commits = tuple(self._commits), []
        copies, self._copies = tuple(self._copies), []
        return Verdict(
            step=self._step,
            commits=commits,
            copies=copies,
            rows=rows,
            projection=max((s.drafting.projection for s in self._planned), default=0),
        )

    def _preempt(self) -> None:
        """Interrupt the newest sequences while there are too many tokens; they go on later."""
        limit = self._limits.max_kv_tokens
        while limit is not None and len(self._running) > 1:
            if self.num_kv_tokens + len(self._running) <= limit:
                return
            newest = next(reversed(self._running.values()))
            output = tuple(newest.token_ids[len(newest.request.prompt_ids) :])
            self._release(newest)
            self._waiting.appendleft(replace(newest.request, output_ids=output))
            self.num_preemptions += 1

    def _admit(self) -> None:
        while self._waiting and self._slots.has_free and self._has_room(self._waiting[0]):
            request = self._waiting.popleft()
            self._running[request.request_id] = self._start(request)

    def _has_room(self, request: Request) -> bool:
        limit = self._limits.max_kv_tokens
        if limit is None or not self._running:
            return True
        return self.num_kv_tokens + len(self._running) + len(request.known_ids) < limit

    def _start(self, request: Request) -> Sequence:
        """Give a request a slot, with what of its tokens some slot still holds."""
        drafting = self._drafting_of(request)
        scores_prompt = request.sampling.prompt_logprobs is not None
        place = self._slots.take(
            () if scores_prompt else request.known_ids,
            [sequence.prefix for sequence in self._running.values()],
            needs_features=drafting.projection > 0,
        )
        if place.copy is not None:
            self._copies.append(place.copy)
        return Sequence(
            request=request,
            slot=place.slot,
            committed_length=place.length,
            features=place.features,
            copies=self._new_copy_index(drafting.policy.copy_index),
            max_model_len=self._limits.max_model_len,
            drafting=drafting,
            sampler=self._sampler(request),
        )

    def _sampler(self, request: Request) -> TokenSampler | None:
        if not request.sampling.is_shaped:
            return None
        return TokenSampler(
            request.sampling,
            prompt_ids=request.prompt_ids,
            output_ids=request.output_ids,
            stop_ids=request.stop_ids(self._limits.stop_ids),
        )

    def _plan(self) -> tuple[SequenceRows, ...]:
        """Decoding sequences first, each with its draft; prompt chunks fill what is left."""
        decoding = [s for s in self._running.values() if not s.is_prefilling]
        prefilling = [s for s in self._running.values() if s.is_prefilling]
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
            judgement = judge(
                sequence,
                rows,
                result.of_sequence(index),
                stop_ids=sequence.request.stop_ids(self._limits.stop_ids),
                near_tie_margin=self._limits.near_tie_margin,
                verify_ms=verify_ms,
            )
            self._apply(sequence, judgement)
            judgements.append(judgement)
        return StepOutcome(
            events=tuple(j.event for j in judgements if j.event is not None),
            records=tuple(j.record for j in judgements),
        )

    def _apply(self, sequence: Sequence, judgement: Judgement) -> None:
        """Learn from the draft; the accepted rows are committed with the next verdict."""
        record = judgement.record
        if record.source != "prefill":
            self._planner.observe(sequence, accepted=record.accepted, deepest=record.drafted)
        self._commits.append(judgement.commit)
        if sequence.finish_reason is not None:
            self._release(sequence)
