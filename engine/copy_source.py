"""Where copies come from: what a policy may ask about earlier tokens, and a source with none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CopyMatch(NamedTuple):
    """An earlier occurrence of the context's end."""

    length: int
    """Tokens that agree, back from the end."""
    start: int
    """Position of the token that followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRule:
    """Which earlier occurrences a gate rates, and how far they are copied: SwitchSD+'s defaults."""

    match_length: int = 1
    """Shortest match (κ)."""
    max_matches: int = 16
    """Occurrences that are looked at."""
    max_tokens: int = 20
    """Longest copy."""


class CopySource(Protocol):
    """Finds what followed earlier occurrences of the newest tokens (the copy index)."""

    def append(self, token_ids: Sequence[int]) -> None:
        """Index newly committed tokens, the pending token included."""
        ...

    def continuations(
        self, *, match_length: int, max_candidates: int, max_tokens: int
    ) -> tuple[tuple[int, ...], ...]:
        """Distinct continuations of the last ``match_length`` tokens, newest occurrence first."""
        ...

    def earliest(self, *, match_length: int, max_tokens: int) -> tuple[int, ...]:
        """Continuation of the earliest occurrence that any token follows."""
        ...

    def earliest_complete(self, *, match_length: int) -> tuple[int, ...]:
        """Earliest continuation of the full length the index was made for."""
        ...

    def matches(self, *, max_matches: int) -> tuple[CopyMatch, ...]:
        """Earlier occurrences of the context's end, longest match first, then newest first."""
        ...


class _NoCopies:
    """A copy source for drafters that never ask it."""

    def append(self, token_ids: Sequence[int]) -> None:
        """Nothing is kept."""

    def continuations(
        self, *, match_length: int, max_candidates: int, max_tokens: int
    ) -> tuple[tuple[int, ...], ...]:
        """Nothing was found."""
        del match_length, max_candidates, max_tokens
        return ()

    def earliest(self, *, match_length: int, max_tokens: int) -> tuple[int, ...]:
        """Nothing was found."""
        del match_length, max_tokens
        return ()

    def earliest_complete(self, *, match_length: int) -> tuple[int, ...]:
        """Nothing was found."""
        del match_length
        return ()

    def matches(self, *, max_matches: int) -> tuple[CopyMatch, ...]:
        """Nothing was found."""
        del max_matches
        return ()


NO_COPIES: CopySource = _NoCopies()
