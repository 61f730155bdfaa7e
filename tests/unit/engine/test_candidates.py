"""Tries: equal prefixes share nodes, parents come first, the best candidate's path first."""

from __future__ import annotations

from engine.candidates import TokenTree, chain, keep_nodes, merge_candidates


def test_equal_prefixes_share_nodes() -> None:
    """Two rows for one position could disagree about it."""
    tree = merge_candidates(9, [(1, 2, 3), (1, 2, 4), (1, 2, 3), (5,)], max_nodes=99)
    assert tree == TokenTree((9, 1, 2, 3, 4, 5), (-1, 0, 1, 2, 2, 0))
    assert tree.depths == (0, 1, 2, 3, 3, 1)


def test_node_budget_keeps_the_best_candidate_first() -> None:
    """A budget must cost the later candidates, not the first one."""
    tree = merge_candidates(9, [(1, 2, 3), (4, 5, 6)], max_nodes=5)
    assert tree.token_ids == (9, 1, 2, 3, 4)


def test_paths_run_from_the_pending_token_to_the_node() -> None:
    """The paths are the ancestor mask."""
    tree = merge_candidates(9, [(1, 2), (1, 3)], max_nodes=99)
    assert tree.paths() == [[0], [0, 1], [0, 1, 2], [0, 1, 3]]


def test_keep_nodes_renumbers_parents() -> None:
    """A pruned tree is a tree of its own."""
    tree = merge_candidates(9, [(1, 2), (3, 4)], max_nodes=99)
    assert keep_nodes(tree, [0, 3, 4]) == TokenTree((9, 3, 4), (-1, 0, 1))


def test_chain_follows_the_committed_prefix() -> None:
    """A prompt chunk's first row has no parent in the block."""
    assert chain([4, 5]).is_chain
    assert chain([4, 5]).parents == (-1, 0)
    assert not merge_candidates(9, [(1,), (2,)], max_nodes=99).is_chain
