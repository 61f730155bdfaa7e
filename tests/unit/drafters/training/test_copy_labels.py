"""Span labels and copy gains against their definitions, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from drafters.training.copy_labels import accepted_copy_lengths, copy_labels

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def brute_force_label(tokens: Sequence[int], index: int, window: int) -> bool:
    """Some window that contains ``index`` equals a window that starts earlier."""
    starts = range(max(0, index - window + 1), min(index, len(tokens) - window) + 1)
    return any(
        list(tokens[start : start + window]) == list(tokens[earlier : earlier + window])
        for start in starts
        for earlier in range(start)
    )


def brute_force_gain(tokens: Sequence[int], index: int, match_length: int, limit: int) -> int:
    """The best accepted length over all earlier occurrences of the last tokens."""
    end, known, best = index + 1, tokens[: index + 1], -1
    for earlier in range(match_length, end):
        if known[earlier - match_length : earlier] == known[end - match_length :]:
            draft = known[earlier : earlier + limit]
            agreed = 0
            while (
                agreed < min(len(draft), len(tokens) - end)
                and draft[agreed] == tokens[end + agreed]
            ):
                agreed += 1
            best = max(best, agreed)
    return best


def test_hand_made_example() -> None:
    prompt, output = [1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 5, 6, 7]
    assert copy_labels(prompt + output, 6).tolist() == [False, True, True, True, True, True, False]


def test_window_may_begin_in_the_prompt() -> None:
    tokens = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert copy_labels(tokens, 8).tolist() == [True, True, True]


def test_four_repeated_tokens_are_no_span() -> None:
    assert not copy_labels([1, 2, 3, 4, 9, 1, 2, 3, 4, 8], 5).any()


@given(TOKENS, st.integers(0, 40), st.integers(1, 5))
def test_labels_equal_their_definition(tokens: list[int], cut: int, window: int) -> None:
    num_prompt = min(cut, len(tokens))
    expected = [brute_force_label(tokens, i, window) for i in range(num_prompt, len(tokens))]
    assert copy_labels(tokens, num_prompt, window=window).tolist() == expected


@given(TOKENS, st.integers(0, 40), st.integers(1, 4), st.integers(1, 6))
def test_copy_gain_equals_its_definition(
    tokens: list[int], cut: int, match_length: int, limit: int
) -> None:
    num_prompt = min(cut, len(tokens))
    gains = accepted_copy_lengths(
        tokens, num_prompt, match_length=match_length, max_candidates=40, max_tokens=limit
    )
    expected = [
        brute_force_gain(tokens, index, match_length, limit)
        for index in range(num_prompt, len(tokens))
    ]
    assert gains.tolist() == expected


@given(TOKENS, st.integers(0, 40))
def test_whoever_can_copy_a_token_is_inside_a_span(tokens: list[int], cut: int) -> None:
    """A κ-gram match ends at the token, so its own window is a repeated one."""
    num_prompt = min(cut, len(tokens))
    matched = accepted_copy_lengths(tokens, num_prompt, match_length=5) >= 0
    assert bool((copy_labels(tokens, num_prompt) | ~matched).all())
