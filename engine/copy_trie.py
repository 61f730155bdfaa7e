"""What followed earlier occurrences of the context's end, as a trie that is opened step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.copy_source import CopyMatch


class Branch(NamedTuple):
    """A token that some occurrences agree on next."""

    token_id: int
    matches: tuple[CopyMatch, ...]
    """The occurrences that it continues, in the order of the look-up: longest match first."""

    @property
    def length(self) -> int:
        """The longest of their matches."""
        return self.matches[0].length

    @property
    def newest(self) -> int:
        """Where the newest of them goes on."""
        return max([match.start for match in self.matches])


def branches(
    token_ids: Sequence[int], matches: Sequence[CopyMatch], depth: int
) -> tuple[Branch, ...]:
    """The tokens ``depth`` places behind the occurrences, in the order of the look-up.

    An occurrence that reaches the context's end goes no further.
    """
    end = len(token_ids)
    if len(matches) == 1:  # most nodes: no need to group
        place = matches[0].start + depth
        return (Branch(token_ids[place], tuple(matches)),) if place < end else ()
    by_token: dict[int, list[CopyMatch]] = {}
    for match in matches:
        if match.start + depth < end:
            by_token.setdefault(token_ids[match.start + depth], []).append(match)
    return tuple(Branch(token, tuple(found)) for token, found in by_token.items())
