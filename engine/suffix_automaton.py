"""A suffix automaton that grows token by token and knows the longest suffix that occurred before.

Blumer et al. 1985; used for drafting by SAM-Decoding (Hu et al. 2024, hyx1999/SAM-Decoding). Every
state stands for substrings that end at the same places; a token costs amortised constant time and
n tokens make at most 2n - 1 states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    length: int
    """Of its longest substring."""
    first_end: int
    """Where it first ended; -1 for the empty string."""
    link: int = -1
    """State of the longest suffix that ends at more places."""
    following: dict[int, int] = field(default_factory=dict)


class SuffixAutomaton:
    """Of one sequence."""

    def __init__(self) -> None:
        self._states = [_State(length=0, first_end=-1)]
        self._last = 0
        self._size = 0
        self._match, self._match_length = 0, 0

    def __len__(self) -> int:
        """Tokens taken in."""
        return self._size

    @property
    def num_states(self) -> int:
        """At most 2n - 1 beside the first."""
        return len(self._states)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Take in tokens: first the match follows each, so that it never finds itself."""
        for token in token_ids:
            self._follow(token)
            self._add(token)
            self._settle()

    def matches(self) -> list[tuple[int, int]]:
        """(length, end of the first occurrence) of the longest repeated suffix and its suffixes.

        Of the suffixes only those that have an earlier occurrence than the longer ones.
        """
        found, state, length = [], self._match, self._match_length
        while length > 0:
            found.append((length, self._states[state].first_end))
            state = self._states[state].link
            length = self._states[state].length
        return found

    def _follow(self, token: int) -> None:
        state, length = self._match, self._match_length
        while state > 0 and token not in self._states[state].following:
            state = self._states[state].link
            length = self._states[state].length
        if token in self._states[state].following:
            state, length = self._states[state].following[token], length + 1
        self._match, self._match_length = state, length

    def _settle(self) -> None:
        """A state that was split keeps its long substrings only: go to the part that matched."""
        while self._match > 0:
            link = self._states[self._match].link
            if self._match_length > self._states[link].length:
                return
            self._match = link

    def _add(self, token: int) -> None:
        states, last = self._states, self._last
        states.append(_State(length=states[last].length + 1, first_end=self._size))
        new, self._last = len(states) - 1, len(states) - 1
        self._size += 1
        while last >= 0 and token not in states[last].following:
            states[last].following[token] = new
            last = states[last].link
        states[new].link = 0 if last < 0 else self._suffix_state(last, token)

    def _suffix_state(self, above: int, token: int) -> int:
        """The state of the new token's longest earlier suffix, split off where it needs to be."""
        states = self._states
        found = states[above].following[token]
        if states[found].length == states[above].length + 1:
            return found
        old = states[found]
        states.append(
            _State(
                length=states[above].length + 1,
                first_end=old.first_end,
                link=old.link,
                following=dict(old.following),
            )
        )
        clone = old.link = len(states) - 1
        while above >= 0 and states[above].following.get(token) == found:
            states[above].following[token] = clone
            above = states[above].link
        return clone
