"""Losses of a drafter's next-token distributions, without whole logits.

A vocabulary of 49,152 tokens makes 200 kB of fp32 logits per row and model, several times over with
what autograd keeps. The drafter's head is frozen here, so the gradient that reaches its states is
known at once: (softmax(q) - p) W, where p is what it learns: the verifier's distribution, or all on
one token. Chunk by chunk, loss and gradient are computed together and
the logits are forgotten: the idea of Liger's fused linear losses (arXiv 2410.10989, section 3.2).

Legend: L rows, H and G the drafter's and the verifier's hidden sizes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.models.layers import wide_dtype

CHUNK_ROWS = 64
"""Rows whose logits exist at the same time."""

Logits = Callable[[slice], Tensor]
"""The verifier's logits of some rows, [rows, V], wide."""


Compare = Callable[[Tensor, slice], tuple[Tensor, Tensor, Tensor]]
"""The drafter's logits of some rows to: softmax(q) - p, the rows' summed loss, and where the
drafter's arg-max is right."""


class FusedLoss(NamedTuple):
    """What a pass over the rows gives."""

    loss: Tensor
    """Mean over the rows."""
    agree: Tensor
    """[L] bool: the drafter's arg-max is the wanted token."""


def fused_kl(states_LH: Tensor, head_VH: Tensor, wanted: Logits) -> FusedLoss:
    """KL(verifier || drafter) of the drafter's normed states and its frozen head.

    Gradients reach ``states_LH`` alone. 0 without rows.
    """

    def compare(drafted_LV: Tensor, chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
        return _divergence(drafted_LV, wanted(chunk))

    return FusedLoss(*_Fused.apply(states_LH, head_VH, compare))  # type: ignore[no-untyped-call]


def fused_cross_entropy(states_LH: Tensor, head_VH: Tensor, wanted_L: Tensor) -> FusedLoss:
    """Cross-entropy of the wanted columns of the head [L]; gradients and 0 as in ``fused_kl``."""

    def compare(drafted_LV: Tensor, chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
        return _surprise(drafted_LV, wanted_L[chunk])

    return FusedLoss(*_Fused.apply(states_LH, head_VH, compare))  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    """Forward computes the gradient too; backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any, states_LH: Tensor, head_VH: Tensor, compare: Compare
    ) -> tuple[Tensor, Tensor]:
        rows = len(states_LH)
        gradient_LH = torch.zeros_like(states_LH)
        agree_L = torch.zeros(rows, dtype=torch.bool)
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, rows, CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            difference, chunk_total, agree = compare(states_LH[chunk] @ head_VH.T, chunk)
            gradient_LH[chunk] = (difference / rows).to(states_LH.dtype) @ head_VH
            agree_L[chunk] = agree
            total += chunk_total
        ctx.save_for_backward(gradient_LH)
        ctx.mark_non_differentiable(agree_L)
        return (total / max(1, rows)).float(), agree_L

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient_LH,) = ctx.saved_tensors
        return gradient_LH * gradients[0].to(gradient_LH.dtype), None, None


def _surprise(drafted_LV: Tensor, wanted_L: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(q) - one-hot, the sum of -log q of the wanted columns, and where they are likeliest.

    -log q = log Σ e^d - d for logits d.
    """
    drafted_LV = drafted_LV.to(wide_dtype(drafted_LV.dtype))
    q_LV, wanted_L1 = drafted_LV.softmax(-1), wanted_L[:, None]
    best_L1 = drafted_LV.argmax(-1, keepdim=True)
    log_sums_L = _log_sum(drafted_LV, q_LV, best_L1)
    total = (log_sums_L - drafted_LV.gather(1, wanted_L1)[:, 0]).sum(dtype=torch.float64)
    difference_LV = q_LV.scatter_add_(1, wanted_L1, q_LV.new_full(wanted_L1.shape, -1.0))
    return difference_LV, total, (best_L1 == wanted_L1).flatten()


def _divergence(drafted_LV: Tensor, wanted_LV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(q) - p, the sum of the divergences, and where the arg-max agrees.

    KL = Σ p (log p - log q) = Σ p (w - d) - log Σ e^w + log Σ e^d for logits w and d: two softmaxes
    and a product, each a single pass over the logits.
    """
    drafted_LV = drafted_LV.to(wanted_LV.dtype)
    p_LV, q_LV = wanted_LV.softmax(-1), drafted_LV.softmax(-1)
    best_p_L, best_q_L = wanted_LV.argmax(-1, keepdim=True), drafted_LV.argmax(-1, keepdim=True)
    margins_L = (p_LV[:, None] @ (wanted_LV - drafted_LV)[..., None]).flatten()
    log_sums_L = _log_sum(drafted_LV, q_LV, best_q_L) - _log_sum(wanted_LV, p_LV, best_p_L)
    total = (margins_L + log_sums_L).sum(dtype=torch.float64)
    return q_LV.sub_(p_LV), total, (best_p_L == best_q_L).flatten()


def _log_sum(logits_LV: Tensor, probs_LV: Tensor, best_L1: Tensor) -> Tensor:
    """[L]: log Σ e^logit, from a logit and its probability."""
    return (logits_LV.gather(1, best_L1) - probs_LV.gather(1, best_L1).log()).flatten()
