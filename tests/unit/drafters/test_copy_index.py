"""The copy index finds what a brute-force scan finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.copy_index import CopyIndex
from tests.support.reference import find_continuations

TOKENS = st.lists(st.integers(0, 3), max_size=60)


@settings(max_examples=400, deadline=None)
@given(
    tokens=TOKENS,
    match_length=st.integers(1, 4),
    max_candidates=st.integers(1, 5),
    max_tokens=st.integers(1, 6),
)
def test_incremental_look_up_equals_brute_force_at_every_length(
    tokens: list[int], match_length: int, max_candidates: int, max_tokens: int
) -> None:
    """Catches wrong recency order, self-matches, lost overlaps and kept duplicates."""
    index = CopyIndex([match_length], max_tokens)
    for length, token in enumerate(tokens, start=1):
        index.append([token])
        wanted = {
            "match_length": match_length,
            "max_candidates": max_candidates,
            "max_tokens": max_tokens,
        }
        assert index.continuations(**wanted) == find_continuations(tokens[:length], **wanted)


def test_hand_made_example_copies_what_followed_the_pending_token() -> None:
    """The gram ends at the pending token: an index one off would return the token itself."""
    index = CopyIndex([2], 3)
    index.append([7, 8, 9, 1, 2, 7, 8])
    found = index.continuations(match_length=2, max_candidates=4, max_tokens=3)
    assert found == ((9, 1, 2),)


def test_overlap_with_the_suffix_is_allowed_and_ends_with_the_context() -> None:
    """A run of one token may be copied from itself, up to the newest token."""
    index = CopyIndex([2], 4)
    index.append([5, 5, 5])
    assert index.continuations(match_length=2, max_candidates=4, max_tokens=4) == ((5,),)


def test_earliest_takes_the_first_occurrence_that_a_token_follows() -> None:
    """CopySpec's choice differs from the newest occurrence."""
    index = CopyIndex([1], 2)
    index.append([1, 2, 3, 1, 4, 5, 1])
    assert index.earliest(match_length=1, max_tokens=2) == (2, 3)
    assert index.continuations(match_length=1, max_candidates=1, max_tokens=2) == ((4, 5),)


def test_earliest_complete_skips_occurrences_too_close_to_the_end() -> None:
    """Prompt look-up proposes whole continuations only."""
    index = CopyIndex([1], 3)
    index.append([1, 2, 1])
    assert index.earliest_complete(match_length=1) == ()
    index.append([2, 1])
    assert index.earliest_complete(match_length=1) == (2, 1, 2)


@given(tokens=TOKENS, match_length=st.integers(1, 3))
@settings(deadline=None)
def test_appending_at_once_equals_appending_one_by_one(
    tokens: list[int], match_length: int
) -> None:
    """Catches state that depends on how tokens arrive: prompts come whole, output in blocks."""
    whole, single = CopyIndex([match_length], 4), CopyIndex([match_length], 4)
    whole.append(tokens)
    for token in tokens:
        single.append([token])
    wanted = {"match_length": match_length, "max_candidates": 3, "max_tokens": 4}
    assert whole.continuations(**wanted) == single.continuations(**wanted)
