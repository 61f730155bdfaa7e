"""The match index finds what a scan over the whole context finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.match_index import MAX_MATCH_LENGTH, MatchIndex
from engine.copy_source import CopyMatch


def scanned(tokens: list[int], min_length: int) -> list[CopyMatch]:
    """Every earlier occurrence of the end, by comparing backwards from each place."""
    found = []
    for start in range(1, len(tokens)):
        length = 0
        while length < min(start, MAX_MATCH_LENGTH) and (
            tokens[start - 1 - length] == tokens[len(tokens) - 1 - length]
        ):
            length += 1
        if length >= min_length:
            found.append(CopyMatch(length, start))
    return sorted(found, reverse=True)


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=45), min_length=st.integers(1, 6))
def test_equals_a_scan_at_every_length(tokens: list[int], min_length: int) -> None:
    """Short contexts have fewer occurrences than a look-up visits, so nothing may be missing."""
    index = MatchIndex(min_length)
    for length in range(1, len(tokens) + 1):
        index.grow(tokens[:length])
    assert index.matches(tokens, 100) == tuple(scanned(tokens, min_length))


def test_a_long_match_is_found_behind_many_short_ones() -> None:
    """A common pair has more recent occurrences than are visited; the long gram finds it."""
    tokens = [10, 11, 12, 1, 2, 77] + [1, 2, 5] * 80 + [10, 11, 12, 1, 2]
    index = MatchIndex(2)
    for length in range(1, len(tokens) + 1):
        index.grow(tokens[:length])
    assert index.matches(tokens, 4)[0] == CopyMatch(5, 5)


def test_a_pair_is_found_behind_many_single_tokens() -> None:
    tokens = [7, 2, 77] + [2, 5] * 80 + [7, 2]
    index = MatchIndex(1)
    for length in range(1, len(tokens) + 1):
        index.grow(tokens[:length])
    assert index.matches(tokens, 4)[0] == CopyMatch(2, 2)
