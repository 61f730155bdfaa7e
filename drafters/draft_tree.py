"""The shape of drafts: chains, and dynamic trees that grow level by level and keep the likeliest.

EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): each level expands the best nodes of the
level before; a node's score is the log-probability of its whole path; at the end the best nodes of
all levels are kept. A child never scores above its parent and was made after it, so with ties to
the older node every kept node's ancestors are kept too.

Nothing here knows a model: ``grow_tree`` asks for the children of a level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.layers import wide_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainShape:
    """The likeliest token each time."""

    num_tokens: int = 5
    min_probability: float = 0.0
    """The chain ends before its probability falls below this; 0 never ends it."""

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError(f"draft chain: num_tokens is {self.num_tokens}; it must be 1 or more")
        if not 0.0 <= self.min_probability <= 1.0:
            raise ValueError(
                f"draft chain: min_probability is {self.min_probability}; it must be from 0 to 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """How large a draft tree becomes. EAGLE's names: total_token, depth + 1, top_k."""

    total_nodes: int = 60
    """Nodes kept at most, the pending token's included."""
    depth: int = 6
    """Draft tokens on the longest path."""
    top_k: int = 10
    """Nodes expanded per level, and children of each."""

    def __post_init__(self) -> None:
        for name in ("total_nodes", "depth", "top_k"):
            least = 2 if name == "total_nodes" else 1
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"draft tree: {name} is {value}; it must be {least} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """The likeliest next tokens of some nodes."""

    token_ids: Sequence[Sequence[int]]
    """Per node, likeliest first."""
    log_probs: Sequence[Sequence[float]]
    """Aligned with ``token_ids``: log-probability given the node's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Nodes to run in one forward pass. Rows are counted over all levels run so far."""

    token_ids: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    """Per node the rows from its first ancestor to itself: what it may attend to."""


Expand = Callable[[Level], Children]
"""Runs a level's nodes and returns the children of each."""


def top_children(logits_RV: Tensor, count: int, to_token: Callable[[Tensor], Tensor]) -> Children:
    """The ``count`` likeliest tokens per row; ``to_token`` maps columns to token ids."""
    log_probs_RV = logits_RV.to(wide_dtype(logits_RV.dtype)).log_softmax(-1)
    top = log_probs_RV.topk(min(count, logits_RV.shape[-1]), dim=-1)
    token_ids: list[list[int]] = to_token(top.indices).tolist()
    log_probs: list[list[float]] = top.values.tolist()
    return Children(token_ids=token_ids, log_probs=log_probs)


def grow_tree(shape: TreeShape, roots: Children, expand: Expand) -> tuple[tuple[int, ...], ...]:
    """The kept tree as candidates, best first; ``roots`` holds the pending token's children.

    ``expand`` is called ``depth - 1`` times.
    """
    tree = _Tree()
    level = tree.add([-1], roots)
    for _ in range(shape.depth - 1):
        beam = tree.best(level, shape.top_k)
        level = tree.add(beam, expand(tree.run(beam)))
    return tree.candidates(tree.best(range(len(tree.token_ids)), shape.total_nodes - 1))


class _Tree:
    """Draft nodes in the order they were made; parent -1 is the pending token."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._paths: dict[int, tuple[int, ...]] = {-1: ()}
        """Rows on the path of every node that was run."""

    def add(self, parents: Sequence[int], children: Children) -> range:
        """Append the children of every parent; returns the new nodes."""
        first = len(self.token_ids)
        for parent, tokens, log_probs in zip(
            parents, children.token_ids, children.log_probs, strict=True
        ):
            score = self._scores[parent] if parent >= 0 else 0.0
            self.token_ids.extend(tokens)
            self._parents.extend([parent] * len(tokens))
            self._scores.extend(score + log_prob for log_prob in log_probs)
        return range(first, len(self.token_ids))

    def best(self, nodes: Iterable[int], count: int) -> list[int]:
        """The nodes with the highest scores, highest first, ties to the older node."""
        return sorted(nodes, key=lambda node: (-self._scores[node], node))[:count]

    def run(self, nodes: Sequence[int]) -> Level:
        """Give the nodes the next rows."""
        row = len(self._paths) - 1
        for offset, node in enumerate(nodes):
            self._paths[node] = (*self._paths[self._parents[node]], row + offset)
        return Level(
            token_ids=tuple(self.token_ids[node] for node in nodes),
            paths=tuple(self._paths[node] for node in nodes),
        )

    def candidates(self, kept: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The kept nodes as root-to-leaf paths."""
        paths = best_first_paths(kept, self._parents)
        return tuple(tuple(self.token_ids[node] for node in path) for path in paths)


def best_first_paths(kept: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """Root-to-leaf paths through the kept nodes, in the order of the best node that each adds.

    ``kept`` is best first, parents before their children; a root's parent is -1. Whoever cuts the
    list from behind keeps the likelier nodes, and siblings stand in the order of their
    probabilities.
    """
    best_child: dict[int, int] = {}
    for node in kept:
        best_child.setdefault(parents[node], node)
    seen: set[int] = set()
    paths = []
    for node in kept:
        if node in seen:
            continue
        leaf = node
        while leaf in best_child:
            leaf = best_child[leaf]
        path = _to_root(leaf, parents)
        seen.update(path)
        paths.append(path)
    return paths


def _to_root(node: int, parents: Sequence[int]) -> list[int]:
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = parents[node]
    return nodes[::-1]


def path_mask(level: Level, *, first_row: int, dtype: torch.dtype) -> Tensor:
    """[nodes, rows so far] to be added to scores: 0 on a node's path, -inf elsewhere."""
    count = len(level.paths)
    bias = torch.full((count, first_row + count), float("-inf"), dtype=dtype)
    for node, path in enumerate(level.paths):
        bias[node, list(path)] = 0.0
    return bias
