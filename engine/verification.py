"""Lossless verification of a token tree: pure functions of token ids.

Greedy rule: walk down from the pending token as long as the verifier's arg-max is one of the node's
children. The walk emits exactly what plain greedy decoding would, because each row's logits depend
only on the row's own path.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.candidates import TokenTree


@dataclass(frozen=True, slots=True)
class Verification:
    """What a greedy walk found."""

    path: tuple[int, ...]
    """Accepted nodes from the pending token (node 0) on; the last one is row NA."""
    output_tokens: tuple[int, ...]
    """Accepted draft tokens, then the verifier's own token: always ``len(path)`` tokens."""


def verify_greedy(tree: TokenTree, next_ids: Sequence[int]) -> Verification:
    """Accept the longest path whose tokens are the verifier's arg-max.

    ``next_ids[i]`` is the arg-max of node i's logits. A trie has at most one child per token, so
    the path is unique.
    """
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True))
        if node > 0
    }
    path = [0]
    while (child := children.get((path[-1], next_ids[path[-1]]))) is not None:
        path.append(child)
    return Verification(tuple(path), tuple(next_ids[node] for node in path))


def cut_output(
    output_tokens: Sequence[int], *, stop_ids: Collection[int], max_tokens: int
) -> tuple[tuple[int, ...], bool]:
    """Cut a block's output after the first stop token and at ``max_tokens``.

    Returns the tokens and whether a stop token ended them; the stop token itself is kept, as plain
    decoding would.
    """
    kept = output_tokens[:max_tokens]
    for index, token in enumerate(kept):
        if token in stop_ids:
            return tuple(kept[: index + 1]), True
    return tuple(kept), False
