"""Which requests run: checks, the queue, slots with what they still hold, preemption.

The coordinator's alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.copy_source import CopySource
from engine.drafting import Drafters, Drafting
from engine.grammar import GrammarFactory
from engine.kv_cache import KVCopy
from engine.records import CopyIndexShape, Request
from engine.request_stats import RequestStats
from engine.sequence import Sequence
from engine.slots import PrefixCounters, SlotPool
from engine.token_sampler import TokenGrammar, TokenSampler

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


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request without a slot."""

    request: Request
    arrived: float
    """On the monotonic clock."""


class Admission:
    """Requests that wait and sequences that run, newest last."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        drafting: Drafting,
        drafters: Drafters,
        new_copy_index: CopyIndexFactory,
        grammars: GrammarFactory | None,
    ) -> None:
        self._limits, self._drafters = limits, drafters
        self._new_copy_index, self._grammars = new_copy_index, grammars
        self._slots = SlotPool(limits.num_slots, reuses_prefixes=limits.reuses_prefixes)
        self._waiting: deque[_Waiting] = deque()
        self._copies: list[KVCopy] = []
        self.running: dict[str, Sequence] = {}
        self.num_preemptions = self.prompt_tokens = 0
        self.drafting = drafting

    def use(self, drafting: Drafting) -> None:
        """Draft with another method from now on; only while no request waits or runs."""
        self.drafting = drafting
        self._slots.forget()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def num_free_slots(self) -> int:
        """Slots without a request."""
        return self._slots.num_free

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of all running sequences."""
        return sum(len(sequence.token_ids) for sequence in self.running.values())

    @property
    def kv_usage(self) -> float:
        """Share of the cache's tokens in use, from 0 to 1."""
        limits = self._limits
        room = limits.max_kv_tokens or limits.num_slots * limits.max_model_len
        return self.num_kv_tokens / room

    def reset_counters(self) -> None:
        """Count from here."""
        self.num_preemptions = self.prompt_tokens = 0
        self._slots.counters = PrefixCounters()

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
        self._check_grammar(request)
        drafting = self._drafting_of(request)
        if drafting.projection not in (0, self.drafting.projection):
            raise ValueError(
                f"drafter {drafting.speculation.drafter!r} is loaded, but not the one in use"
            )
        self._waiting.append(_Waiting(request, time.monotonic()))

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

    def _check_grammar(self, request: Request) -> None:
        grammar = request.sampling.grammar
        if grammar is None:
            return
        if self._grammars is None or not request.stop_ids(self._limits.stop_ids):
            raise ValueError("a grammar needs a tokenizer, and a token that ends the output")
        self._grammars.check(grammar)

    def _drafting_of(self, request: Request) -> Drafting:
        if request.speculation in (None, self.drafting.speculation):
            return self.drafting
        assert request.speculation is not None
        return self._drafters.drafting(request.speculation)

    def _is_known(self, request_id: str) -> bool:
        waiting = any(entry.request.request_id == request_id for entry in self._waiting)
        return waiting or request_id in self.running

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot; an unknown id is ignored (it may have just ended)."""
        self._waiting = deque(w for w in self._waiting if w.request.request_id != request_id)
        if request_id in self.running:
            self.release(self.running[request_id])

    def release(self, sequence: Sequence) -> None:
        """Its last rows are still committed: what the slot holds may serve another request."""
        del self.running[sequence.request.request_id]
        self._slots.release(sequence.prefix)
        sequence.drafting.forget(sequence.request.request_id)

    def preempt(self) -> None:
        """Interrupt the newest sequences while there are too many tokens; they go on later."""
        limit = self._limits.max_kv_tokens
        while limit is not None and len(self.running) > 1:
            if self.num_kv_tokens + len(self.running) <= limit:
                return
            newest = next(reversed(self.running.values()))
            output = tuple(newest.token_ids[len(newest.request.prompt_ids) :])
            self.release(newest)
            request = replace(newest.request, output_ids=output)
            self._waiting.appendleft(_Waiting(request, newest.stats.arrived))
            self.num_preemptions += 1

    def admit(self) -> tuple[KVCopy, ...]:
        """Give waiting requests slots; the copies have to be done before their rows run."""
        while self._waiting and self._slots.has_free and self._has_room(self._waiting[0].request):
            entry = self._waiting.popleft()
            self.running[entry.request.request_id] = self._start(entry)
        copies, self._copies = tuple(self._copies), []
        return copies

    def _has_room(self, request: Request) -> bool:
        limit = self._limits.max_kv_tokens
        if limit is None or not self.running:
            return True
        return self.num_kv_tokens + len(self.running) + len(request.known_ids) < limit

    def _start(self, entry: _Waiting) -> Sequence:
        """Give a request a slot, with what of its tokens some slot still holds."""
        request = entry.request
        drafting = self._drafting_of(request)
        scores_prompt = request.sampling.prompt_logprobs is not None
        place = self._slots.take(
            () if scores_prompt else request.known_ids,
            [sequence.prefix for sequence in self.running.values()],
            needs_features=drafting.projection > 0,
        )
        if not request.output_ids:
            self.prompt_tokens += len(request.prompt_ids)
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
            stats=RequestStats(arrived=entry.arrived, cached_tokens=place.length),
            sampler=self._sampler(request),
        )

    def _sampler(self, request: Request) -> TokenSampler | None:
        if not request.sampling.is_shaped:
            return None
        stop_ids = request.stop_ids(self._limits.stop_ids)
        grammar = request.sampling.grammar
        return TokenSampler(
            request.sampling,
            prompt_ids=request.prompt_ids,
            output_ids=request.output_ids,
            stop_ids=stop_ids,
            grammar=None if grammar is None else self._matcher(grammar, stop_ids),
        )

    def _matcher(self, grammar: str, stop_ids: frozenset[int]) -> TokenGrammar:
        assert self._grammars is not None, "requests with a grammar are refused without a tokenizer"
        return self._grammars.matcher(grammar, stop_ids)
