"""KL divergence between two models' next-token distributions, without whole logits.

A vocabulary of 49,152 tokens makes 200 kB of fp32 logits per row and model, several times over with
what autograd keeps. Both heads are frozen here, so the gradient that reaches the drafter's states
is known at once: (softmax(q) - p) W. Chunk by chunk, loss and gradient are computed together and
the logits are forgotten: the idea of Liger's fused linear losses (arXiv 2410.10989, section 3.2).

Legend: L rows, H and G the drafter's and the verifier's hidden sizes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_ROWS = 64
"""Rows whose logits exist at the same time."""

Logits = Callable[[slice], Tensor]
"""The verifier's logits of some rows, [rows, V], wide."""


class Distillation(NamedTuple):
    """What a pass over the rows gives."""

    loss: Tensor
    """Mean of KL(verifier || drafter) over the rows."""
    agree: Tensor
    """[L] bool: both have the same arg-max."""


def fused_kl(states_LH: Tensor, head_VH: Tensor, wanted: Logits) -> Distillation:
    """The drafter's normed states and its frozen head against the verifier's logits.

    Gradients reach ``states_LH`` alone. 0 without rows.
    """
    loss, agree_L = _FusedKL.apply(states_LH, head_VH, wanted)  # type: ignore[no-untyped-call]
    return Distillation(loss, agree_L)


class _FusedKL(torch.autograd.Function):
    """Forward computes the gradient too; backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any, states_LH: Tensor, head_VH: Tensor, wanted: Logits
    ) -> tuple[Tensor, Tensor]:
        rows = len(states_LH)
        gradient_LH = torch.zeros_like(states_LH)
        agree_L = torch.zeros(rows, dtype=torch.bool)
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, rows, CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            difference, chunk_total, agree = _compare(states_LH[chunk] @ head_VH.T, wanted(chunk))
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


def _compare(drafted_LV: Tensor, wanted_LV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
