"""The static tree: chosen by products of accuracies, cut without losing a node's parent."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from drafters.static_tree import StaticTree, guessed_tree, likeliest_tree

ACCURACIES = ((0.6, 0.2, 0.1), (0.5, 0.3, 0.05))
"""Two heads, three ranks."""


def test_the_likeliest_paths_are_taken_one_after_the_other() -> None:
    """By hand: 0.6, 0.6 x 0.5, then 0.2 before 0.6 x 0.3, then 0.2 x 0.5 before the equal 0.1."""
    tree = likeliest_tree(ACCURACIES, 6)
    assert tree.nodes == ((0,), (0, 0), (1,), (0, 1), (2,), (1, 0))
    assert tree.expected_length == pytest.approx(0.6 + 0.3 + 0.2 + 0.18 + 0.1 + 0.1)
    assert (tree.depth, tree.num_ranks) == (2, 3)


@pytest.mark.parametrize("num_nodes", [1, 4, 9, 12, 50])
def test_no_tree_of_that_size_is_expected_to_be_accepted_longer(num_nodes: int) -> None:
    """All nodes there are, by brute force: the sum of the largest products is the best sum."""
    values = [
        prod(path) for depth in (1, 2) for path in product(*ACCURACIES[:depth]) if prod(path) > 0
    ]
    best = sum(sorted(values, reverse=True)[:num_nodes])
    tree = likeliest_tree(ACCURACIES, num_nodes)
    assert len(tree.nodes) == min(num_nodes, 12)
    assert tree.expected_length == pytest.approx(best)


def test_a_limited_tree_keeps_the_likeliest_nodes() -> None:
    tree = likeliest_tree(ACCURACIES, 12)
    assert tree.limited(3).nodes == ((0,), (0, 0), (1,))
    assert tree.limited(3).accuracies == ACCURACIES


def test_paths_lead_to_every_leaf_likeliest_first() -> None:
    tree = StaticTree(nodes=((0,), (1,), (0, 1), (0, 0), (1, 0), (2,)))
    assert tree.paths(2) == [(0, 1), (1, 0), (0, 0), (2,)]
    assert tree.paths(1) == [(0,), (1,), (2,)]


def test_a_guess_is_a_tree_without_ratings() -> None:
    tree = guessed_tree(5, 63)
    assert len(tree.nodes) == 63
    assert tree.nodes[:2] == ((0,), (0, 0))
    assert tree.expected_length == 0.0


@pytest.mark.parametrize(
    ("nodes", "accuracies", "sentence"),
    [
        ((), (), "at least one node"),
        (((0, 0), (0,)), (), r"\[0, 0\] has no place"),
        (((0,), (0,)), (), r"\[0\] has no place"),
        (((-1,),), (), r"\[-1\] has no place"),
        (((),), (), r"\[\] has no place"),
        (((0,), (0, 0)), ((0.5,),), r"no accuracies for the tree's node \[0, 0\]"),
        (((3,),), ((0.5, 0.1),), r"no accuracies for the tree's node \[3\]"),
    ],
)
def test_what_is_no_tree_is_refused(
    nodes: tuple[tuple[int, ...], ...], accuracies: tuple[tuple[float, ...], ...], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        StaticTree(nodes=nodes, accuracies=accuracies)
