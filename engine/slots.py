"""KV slots and what they still hold: prefixes that a later request need not compute again.

A slot keeps its keys and values when its request ends. A new request that starts with the same
tokens takes the slot with what fits, or has the common part copied from another one, also from a
request that still runs. With the tokens the slot keeps the drafter's features of their rows, so a
drafter whose keys depend on the next token (EAGLE) is told the whole context and computes its own:
nothing of a drafter's cache is shared (vllm#15901's class).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from engine.features import FeatureHistory
from engine.kv_cache import KVCopy

MIN_REUSED = 16
"""Shorter common prefixes are computed again: they cost less than looking after them."""
_MOSTLY = 0.8
"""Share of a slot's tokens from which it is taken with them, instead of being copied from."""


@dataclass(slots=True)
class Prefix:
    """Tokens whose keys and values lie in a slot, and the features of their rows."""

    slot: int
    token_ids: Sequence[int]
    features: FeatureHistory = field(default_factory=FeatureHistory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A slot for a new request, and what of its tokens is there already."""

    slot: int
    length: int = 0
    """Tokens that need no computing."""
    features: FeatureHistory = field(default_factory=FeatureHistory)
    copy: KVCopy | None = None
    """To be done before the slot is used."""


@dataclass(slots=True, kw_only=True)
class PrefixCounters:
    """vLLM's ``prefix_cache_queries`` and ``prefix_cache_hits``, in tokens."""

    queries: int = 0
    hits: int = 0


class SlotPool:
    """Free slots with their old contents; slots in use belong to their sequences."""

    def __init__(self, num_slots: int, *, reuses_prefixes: bool) -> None:
        self._free = {slot: Prefix(slot, ()) for slot in range(num_slots)}
        self._last_used = dict.fromkeys(range(num_slots), 0)
        self._clock = count(1)
        self._reuses_prefixes = reuses_prefixes
        self.counters = PrefixCounters()

    @property
    def has_free(self) -> bool:
        """Whether another request fits."""
        return bool(self._free)

    @property
    def num_free(self) -> int:
        """Slots without a request."""
        return len(self._free)

    def take(
        self, token_ids: Sequence[int], in_use: Iterable[Prefix], *, needs_features: bool
    ) -> Placement:
        """A slot for these tokens, with the longest prefix found; the last token is never reused.

        Its row must run, because its logits, features and probe score start the answer.
        """
        self.counters.queries += len(token_ids)
        best, length = self._longest(token_ids, in_use, needs_features=needs_features)
        if best is None:
            return Placement(slot=self._pop(self._oldest()))
        self.counters.hits += length
        features = best.features.prefix(length) if needs_features else FeatureHistory()
        if best.slot in self._free and self._is_worn_out(best, length):
            return Placement(slot=self._pop(best.slot), length=length, features=features)
        slot = self._pop(self._oldest(but=best.slot))
        copy = KVCopy(source=best.slot, target=slot, length=length)
        return Placement(slot=slot, length=length, features=features, copy=copy)

    def release(self, prefix: Prefix) -> None:
        """Take a slot back with what it holds."""
        self._free[prefix.slot] = prefix
        self._last_used[prefix.slot] = next(self._clock)

    def forget(self) -> None:
        """Nothing that free slots hold is reused from now on."""
        self._free = {slot: Prefix(slot, ()) for slot in self._free}

    def _longest(
        self, token_ids: Sequence[int], in_use: Iterable[Prefix], *, needs_features: bool
    ) -> tuple[Prefix | None, int]:
        best, length = None, MIN_REUSED - 1
        if not self._reuses_prefixes:
            return best, length
        wanted = np.array(token_ids[:-1])
        for prefix in (*self._free.values(), *in_use):
            found = common_length(wanted, prefix.token_ids)
            if needs_features:
                found = min(found, len(prefix.features))
            if found > length:
                best, length = prefix, found
        return best, length

    def _is_worn_out(self, prefix: Prefix, length: int) -> bool:
        """Whether a free slot is better taken than copied from."""
        return len(self._free) == 1 or length >= _MOSTLY * len(prefix.token_ids)

    def _oldest(self, *, but: int | None = None) -> int:
        slots = [slot for slot in self._free if slot != but]
        return min(slots, key=lambda slot: self._last_used[slot])

    def _pop(self, slot: int) -> int:
        del self._free[slot]
        return slot


def common_length(wanted: np.ndarray, token_ids: Sequence[int]) -> int:
    """Tokens that two sequences have in common from the first on."""
    length = min(len(wanted), len(token_ids))
    if length < MIN_REUSED or wanted[0] != token_ids[0]:
        return 0
    differing = np.flatnonzero(wanted[:length] != np.array(token_ids[:length]))
    return int(differing[0]) if len(differing) else length
