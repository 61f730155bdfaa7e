"""Copy index: from the newest kappa tokens to what followed their earlier occurrences.

Incremental: appending a token costs O(kappa + D) whatever the context length, and a look-up touches
at most W + D entries, because distinct continuations are kept in recency order as they become
complete. A plain list of positions would degrade on repetitive text, where thousands of occurrences
have one and the same continuation.

Rules (SwitchSD; the open points are settled in docs/architecture.md): prompt and output are one
context; the occurrence that is the suffix itself is excluded, overlap with it is allowed; newest
first; a continuation ends with the context; duplicates and prefixes of kept continuations are
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from drafters.match_index import MatchIndex
from engine.copy_source import CopyMatch

Continuation = tuple[int, ...]


class CopyIndex:
    """Append-only index over one sequence's tokens."""

    def __init__(
        self, match_lengths: Iterable[int], max_tokens: int, *, min_match: int = 0
    ) -> None:
        """``min_match``: shortest match that :meth:`matches` lists; 0: it is not asked."""
        self._max_tokens = max_tokens
        self._match_index = MatchIndex(min_match) if min_match else None
        self._tokens: list[int] = []
        self._grams = {length: _GramTable() for length in sorted(set(match_lengths))}

    def append(self, token_ids: Sequence[int]) -> None:
        """Index newly committed tokens, the pending token included."""
        for token in token_ids:
            self._tokens.append(token)
            if self._match_index is not None:
                self._match_index.grow(self._tokens)
            for length, table in self._grams.items():
                self._complete(length, table)

    def _complete(self, length: int, table: _GramTable) -> None:
        """Record the occurrence whose continuation this token completes, and the earliest one."""
        tokens, end = self._tokens, len(self._tokens)
        if end > length:  # the gram before the newest token now has a continuation
            table.earliest.setdefault(tuple(tokens[end - 1 - length : end - 1]), end - 1)
        start = end - self._max_tokens
        if start >= length:
            gram, continuation = tuple(tokens[start - length : start]), tuple(tokens[start:end])
            table.add(gram, continuation, start)

    def continuations(
        self, *, match_length: int, max_candidates: int, max_tokens: int
    ) -> tuple[Continuation, ...]:
        """Distinct continuations of the last ``match_length`` tokens, newest occurrence first.

        At most ``max_candidates``, each cut to ``max_tokens``; empty when the suffix occurs nowhere
        else.
        """
        gram = self._suffix(match_length)
        if gram is None:
            return ()
        kept: list[Continuation] = []
        for continuation in self._newest_first(match_length, gram):
            _keep_distinct(kept, continuation[:max_tokens])
            if len(kept) == max_candidates:
                break
        return tuple(kept)

    def earliest(self, *, match_length: int, max_tokens: int) -> Continuation:
        """Continuation of the earliest occurrence that any token follows (CopySpec's choice)."""
        gram = self._suffix(match_length)
        start = self._grams[match_length].earliest.get(gram) if gram is not None else None
        return () if start is None else tuple(self._tokens[start : start + max_tokens])

    def earliest_complete(self, *, match_length: int) -> Continuation:
        """Earliest continuation of the index's full ``max_tokens`` (prompt look-up's choice)."""
        gram = self._suffix(match_length)
        start = self._grams[match_length].earliest_complete.get(gram) if gram is not None else None
        return () if start is None else tuple(self._tokens[start : start + self._max_tokens])

    def matches(self, *, max_matches: int) -> tuple[CopyMatch, ...]:
        """Earlier occurrences of the context's end, longest match first, then newest first."""
        if self._match_index is None:
            return ()
        return self._match_index.matches(self._tokens, max_matches)

    def _suffix(self, match_length: int) -> Continuation | None:
        if len(self._tokens) <= match_length:
            return None
        return tuple(self._tokens[-match_length:])

    def _newest_first(self, match_length: int, gram: Continuation) -> Iterator[Continuation]:
        """Continuations cut by the context's end first (the newest), then whole ones."""
        tokens, end = self._tokens, len(self._tokens)
        oldest_cut = max(match_length, end - self._max_tokens + 1)
        for start in range(end - 1, oldest_cut - 1, -1):
            if tuple(tokens[start - match_length : start]) == gram:
                yield tuple(tokens[start:end])
        yield from self._grams[match_length].newest_first(gram)


class _GramTable:
    """Occurrences of every gram of one length whose continuation is complete."""

    def __init__(self) -> None:
        self.earliest: dict[Continuation, int] = {}
        self.earliest_complete: dict[Continuation, int] = {}
        self._distinct: dict[Continuation, dict[Continuation, None]] = {}

    def add(self, gram: Continuation, continuation: Continuation, start: int) -> None:
        self.earliest_complete.setdefault(gram, start)
        distinct = self._distinct.setdefault(gram, {})
        distinct.pop(continuation, None)  # re-inserting moves it to the newest end
        distinct[continuation] = None

    def newest_first(self, gram: Continuation) -> Iterator[Continuation]:
        return reversed(self._distinct.get(gram, {}))


def _keep_distinct(kept: list[Continuation], candidate: Continuation) -> None:
    """Add a candidate unless a kept one starts with it; it takes the place of one it extends."""
    for index, other in enumerate(kept):
        shared = min(len(other), len(candidate))
        if other[:shared] == candidate[:shared]:
            if len(candidate) > len(other):
                kept[index] = candidate
            return
    kept.append(candidate)
