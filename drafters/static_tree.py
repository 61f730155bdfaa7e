"""Draft trees of a fixed shape: which of each head's likeliest tokens are combined.

Medusa (Cai et al. 2024, arXiv 2401.10774, section 2.3.3). A node is a path of ranks: (0, 2) is the
likeliest token of the first head followed by the third likeliest of the second; the published code
lists nodes like this as ``medusa_choices``. On calibration data a_k(i) is how often the i-th
likeliest token of head k is the right one. Taken as independent, a path is right with the product
of its ranks' a_k(i), and the expected accepted length of a tree is the sum over its nodes. So the
best tree takes the likeliest nodes one after the other; a child is never likelier than its parent.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from drafters.draft_tree import best_first_paths

Node = tuple[int, ...]
"""The rank that is taken of each head, the first head's first."""

Accuracies = tuple[tuple[float, ...], ...]
"""Per head, per rank: the share of positions at which that token is right; falls with the rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTree:
    """Nodes below the pending token, likeliest first."""

    nodes: tuple[Node, ...]
    accuracies: Accuracies = ()
    """What the nodes were chosen by; empty: unknown."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("a static tree needs at least one node")
        known: set[Node] = {()}
        for node in self.nodes:
            if node in known or node[:-1] not in known or node[-1] < 0:
                raise ValueError(
                    f"{list(node)} has no place in a static tree: nodes are different paths of "
                    "ranks from 0 on, and each stands behind the path that it continues"
                )
            known.add(node)
        for node in self.nodes if self.accuracies else ():
            if len(node) > len(self.accuracies) or max(node) >= len(self.accuracies[0]):
                raise ValueError(f"there are no accuracies for the tree's node {list(node)}")

    @property
    def depth(self) -> int:
        """Draft tokens on the longest path: heads that are used."""
        return max(len(node) for node in self.nodes)

    @property
    def num_ranks(self) -> int:
        """Tokens that are needed of each head."""
        return 1 + max(max(node) for node in self.nodes)

    @property
    def expected_length(self) -> float:
        """Accepted draft tokens per step, if the heads err independently; 0 when unknown."""
        return sum(self.probability(node) for node in self.nodes) if self.accuracies else 0.0

    def probability(self, node: Node) -> float:
        """Of being accepted up to a node, if the heads err independently."""
        return prod(self.accuracies[head][rank] for head, rank in enumerate(node))

    def limited(self, num_nodes: int) -> StaticTree:
        """The likeliest nodes alone."""
        return StaticTree(nodes=self.nodes[:num_nodes], accuracies=self.accuracies)

    def paths(self, max_depth: int) -> list[Node]:
        """Root-to-leaf paths of at most ``max_depth`` ranks, as ``draft_tree.best_first_paths``."""
        nodes = [node for node in self.nodes if len(node) <= max_depth]
        place_of: dict[Node, int] = {node: place for place, node in enumerate(nodes)}
        parents = [place_of.get(node[:-1], -1) for node in nodes]
        return [nodes[path[-1]] for path in best_first_paths(range(len(nodes)), parents)]


def likeliest_tree(accuracies: Sequence[Sequence[float]], num_nodes: int) -> StaticTree:
    """The tree of at most ``num_nodes`` nodes with the longest expected accepted length.

    Ties go to the shorter path, then to the lower ranks.
    """
    table = tuple(tuple(ranks) for ranks in accuracies)
    waiting: list[tuple[float, int, Node]] = [(-p, 1, (rank,)) for rank, p in enumerate(table[0])]
    heapq.heapify(waiting)
    nodes: list[Node] = []
    while waiting and len(nodes) < num_nodes:
        negative, depth, node = heapq.heappop(waiting)
        nodes.append(node)
        for rank, accuracy in enumerate(table[depth] if depth < len(table) else ()):
            heapq.heappush(waiting, (negative * accuracy, depth + 1, (*node, rank)))
    return StaticTree(nodes=tuple(nodes), accuracies=table)


def guessed_tree(num_heads: int, num_nodes: int) -> StaticTree:
    """For heads of unknown quality: accuracies that fall with head and rank in the usual way.

    The guess only shapes the tree; it says nothing of how likely a node is.
    """
    guess = [[0.6 * 0.75**head * 0.4**rank for rank in range(10)] for head in range(num_heads)]
    return StaticTree(nodes=likeliest_tree(guess, num_nodes).nodes)
