"""Lossless verification of a token tree: pure functions of ids, probabilities and noise.

Every rule walks down from the pending token, node by node, and emits exactly what plain decoding
would, because each row's logits depend only on the row's own path.

* **Greedy**: a node's next token is the verifier's arg-max.
* **Sampling**: it is drawn from the verifier's distribution (:func:`race`); a draft that equals it
  was right. For a draft that was not itself drawn at random this is the rejection rule with q = 1
  (a token is accepted with its probability p), for several candidates at once their sum.
* **Rejection**: a draft that was drawn from q is accepted with min(1, p / q), else a token is drawn
  from what p has more than q (:func:`accept_or_resample`; Leviathan et al. 2023, arXiv 2211.17192,
  algorithm 1; Chen et al. 2023, arXiv 2302.01318).

Legend: V vocabulary; "..." any leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.candidates import TokenTree

NextToken = Callable[[int], int]
"""The verifier's token behind a node; asked once for every node of the path, in order."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What a walk found."""

    path: tuple[int, ...]
    """Accepted nodes from the pending token (node 0) on; the last one is row NA."""
    output_tokens: tuple[int, ...]
    """Accepted draft tokens, then the verifier's own token: always ``len(path)`` tokens."""


def verify(
    tree: TokenTree, next_token: NextToken, *, stop_ids: Collection[int] = ()
) -> Verification:
    """Follow the verifier's tokens as long as they are in the tree and none of them stops.

    A trie has at most one child per token, so the path is unique.
    """
    children = tree.children()
    path, output = [0], [next_token(0)]
    while output[-1] not in stop_ids:
        child = children.get((path[-1], output[-1]))
        if child is None:
            break
        path.append(child)
        output.append(next_token(child))
    return Verification(tuple(path), tuple(output))


def verify_greedy(
    tree: TokenTree, next_ids: Sequence[int], *, stop_ids: Collection[int] = ()
) -> Verification:
    """``next_ids[i]`` is the arg-max of node i's logits."""
    return verify(tree, next_ids.__getitem__, stop_ids=stop_ids)


def race(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Tokens drawn from distributions: [..., V] -> [...] int64.

    The arg-max of p / E with exponential noise E [..., V] has distribution p (the Gumbel-max trick
    without logarithms); p need not sum to 1. Two distributions that race with the same noise draw
    the same token as often as they agree (Daliri et al. 2024, arXiv 2408.07978).
    """
    return (probabilities / noise).argmax(-1)


def accept_or_resample(
    target: Tensor, proposal: Tensor, token: Tensor, uniform: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Whether tokens drawn from ``proposal`` are accepted, and the tokens to emit.

    ``target`` and ``proposal`` are distributions [..., V], ``token`` [...] was drawn from the
    latter, ``uniform`` [...] in [0, 1) and ``noise`` [..., V], exponential, are independent.
    """
    place = token.unsqueeze(-1)
    wanted = target.gather(-1, place).squeeze(-1)
    offered = proposal.gather(-1, place).squeeze(-1)
    accepted = uniform * offered < wanted
    residual = (target - proposal).clamp(min=0.0)
    # Equal distributions leave nothing over, and nothing is rejected then but by rounding.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, target)
    return accepted, torch.where(accepted, token, race(residual, noise))


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
