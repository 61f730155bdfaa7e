"""Token trees: the candidates of one sequence merged into one trie below its pending token.

A chain, a copied candidate block and a neural draft tree are all a :class:`TokenTree`; they differ
only in ``parents``. Merging candidates into a trie gives every path exactly one row, so two rows
can never disagree about one position (measured reason: with duplicate rows fp32 results of equal
paths differed in the last bits). Node 0 is the pending token. It has no KV entry yet and is shared
by all candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Rows of one sequence: parents come before children, the best candidate's path first."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    """Node index of each node's parent; -1 for a node that follows the committed prefix."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of nodes above each node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def children(self) -> dict[tuple[int, int], int]:
        """Node by its parent and its token; a trie has at most one."""
        pairs = zip(self.parents, self.token_ids, strict=True)
        return {pair: node for node, pair in enumerate(pairs) if node > 0}

    def paths(self) -> list[list[int]]:
        """Nodes from the first uncommitted node to each node, itself included."""
        paths: list[list[int]] = []
        for node, parent in enumerate(self.parents):
            paths.append([node] if parent < 0 else [*paths[parent], node])
        return paths

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the node before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))


def num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that two sequences have in common from their start on."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def chain(token_ids: Sequence[int]) -> TokenTree:
    """Known tokens in a row: a prompt chunk, or the pending token alone."""
    return TokenTree(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)))


def merge_candidates(
    pending_token: int, candidates: Sequence[Sequence[int]], max_nodes: int
) -> TokenTree:
    """Merge candidates into a trie of at most ``max_nodes`` nodes; equal prefixes share nodes."""
    token_ids, parents = [pending_token], [-1]
    children: dict[tuple[int, int], int] = {}
    for candidate in candidates:
        node = 0
        for token in candidate:
            child = children.get((node, token))
            if child is None:
                if len(token_ids) >= max_nodes:
                    break
                child = children[node, token] = len(token_ids)
                token_ids.append(token)
                parents.append(node)
            node = child
    return TokenTree(tuple(token_ids), tuple(parents))


def leaf_paths(tree: TokenTree) -> tuple[tuple[int, ...], ...]:
    """The candidates that a tree was merged from: tokens behind the root, one path per leaf."""
    leaves = set(range(len(tree.parents))) - set(tree.parents)
    paths = tree.paths()
    return tuple(
        tuple(tree.token_ids[node] for node in paths[leaf][1:]) for leaf in sorted(leaves - {0})
    )


def keep_nodes(tree: TokenTree, nodes: Sequence[int]) -> TokenTree:
    """The subtree made of ``nodes``, which must hold the parent of each of its nodes."""
    kept = sorted(nodes)
    index = {node: position for position, node in enumerate(kept)}
    return TokenTree(
        tuple(tree.token_ids[node] for node in kept),
        tuple(index.get(tree.parents[node], -1) for node in kept),
    )
