"""The greedy walk and the cuts, on examples small enough to check by eye."""

from __future__ import annotations

from engine.candidates import merge_candidates
from engine.verification import cut_output, verify_greedy


def test_walk_takes_the_path_the_verifier_chose_and_adds_its_own_token() -> None:
    """Accepted drafts, then one token of the verifier's: one more than the drafts accepted."""
    tree = merge_candidates(9, [(1, 2, 3), (1, 4)], 99)  # nodes: 9 1 2 3 4
    verification = verify_greedy(tree, [1, 4, 0, 0, 8])
    assert verification.path == (0, 1, 4)
    assert verification.output_tokens == (1, 4, 8)


def test_nothing_accepted_leaves_row_na_at_the_pending_token() -> None:
    """All rejected: the state that counts is the pending token's row."""
    verification = verify_greedy(merge_candidates(9, [(1, 2)], 99), [5, 2, 2])
    assert verification.path == (0,)
    assert verification.output_tokens == (5,)


def test_a_match_deeper_than_a_rejection_does_not_count() -> None:
    """Node 2 agrees with its parent's arg-max, but its parent was rejected."""
    verification = verify_greedy(merge_candidates(9, [(1, 2)], 99), [5, 2, 7])
    assert verification.output_tokens == (5,)


def test_cut_keeps_the_stop_token_and_drops_what_follows() -> None:
    """Plain decoding would have ended there."""
    assert cut_output((1, 2, 3, 4), stop_ids={3}, max_tokens=9) == ((1, 2, 3), True)


def test_cut_at_max_tokens_comes_before_a_later_stop_token() -> None:
    """The stop token beyond the limit was never asked for."""
    assert cut_output((1, 2, 3), stop_ids={3}, max_tokens=2) == ((1, 2), False)
