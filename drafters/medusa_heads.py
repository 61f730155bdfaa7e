"""Medusa heads: each reads the verifier's last state and predicts one further token.

Medusa (Cai et al. 2024, arXiv 2401.10774, section 2.1.1). The verifier's own head turns its last
normalised state x into the pending token; head k, counted from 1, predicts the k-th token behind
that one:

    h_k = x + silu(W_k x + b_k)        logits_k = U_k h_k

W_k starts at zero and U_k as the verifier's head, so an untrained Medusa head says what the
verifier's head says. Published heads own a U_k each, which is nearly all of their size. Ours may
share the verifier's (frozen) head instead, and a part of its vocabulary.

Legend: R rows, H hidden, K heads, D draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafters.vocabulary import DraftVocabulary
from engine.models.layers import Linear, wide_dtype
from engine.models.packed import pack_linears


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaConfig:
    """Sizes of a set of heads."""

    num_heads: int
    hidden_size: int
    vocab_size: int
    """The verifier's."""
    draft_vocab_size: int
    shares_projection: bool = True
    """Whether all heads use the verifier's vocabulary projection, or each has its own."""

    def __post_init__(self) -> None:
        if self.num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, not {self.num_heads}.")
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"draft_vocab_size must be from 1 to the verifier's {self.vocab_size}, not "
                f"{self.draft_vocab_size}."
            )

    @property
    def num_projections(self) -> int:
        """Vocabulary projections that there are."""
        return 1 if self.shares_projection else self.num_heads


class MedusaHeads(nn.Module):
    """All heads; the residual blocks are trained, the projections are frozen."""

    def __init__(
        self,
        config: MedusaConfig,
        vocabulary: DraftVocabulary,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        assert vocabulary.size == config.draft_vocab_size
        self.config, self.vocabulary = config, vocabulary
        heads, hidden = config.num_heads, config.hidden_size
        self.weight = nn.Parameter(torch.zeros(heads, hidden, hidden, dtype=dtype, device=device))
        """W: [K, H, H]."""
        self.bias = nn.Parameter(torch.zeros(heads, hidden, dtype=dtype, device=device))
        """b: [K, H]."""
        self.projections = nn.ModuleList(
            Linear(hidden, config.draft_vocab_size, dtype=dtype, device=device)
            for _ in range(config.num_projections)
        )

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return self.weight.dtype

    def set_projection(self, index: int, weight_VH: Tensor) -> None:
        """Take the rows of the draft vocabulary from a whole vocabulary projection; frozen."""
        rows_DH = weight_VH[self.vocabulary.target_ids].to(self.dtype)
        self.projections[index].weight = nn.Parameter(rows_DH, requires_grad=False)

    def projection(self, head: int) -> Tensor:
        """[D, H]: the vocabulary projection of a head, before it is packed."""
        return self.projections[0 if self.config.shares_projection else head].get_parameter(
            "weight"
        )

    def unfreeze(self) -> None:
        """Train the residual blocks; the projections stay as they are."""
        self.requires_grad_(requires_grad=False)
        for parameter in (self.weight, self.bias):
            parameter.requires_grad = True

    def prepare_for_inference(self) -> None:
        """Freeze, and pack the projections where that is possible."""
        self.requires_grad_(requires_grad=False)
        pack_linears(self)

    def states(self, normed_RH: Tensor) -> Tensor:
        """[R, H], the verifier's last states behind its final norm -> [K, R, H]."""
        inner_KRH = torch.baddbmm(
            self.bias[:, None], normed_RH.expand(len(self.weight), -1, -1), self.weight.mT
        )
        return normed_RH + functional.silu(inner_KRH)

    def logits(self, normed_RH: Tensor) -> Tensor:
        """[R, H] -> [K, R, D] in fp32 (fp64 for fp64)."""
        states_KRH = self.states(normed_RH)
        if self.config.shares_projection:
            logits_KRD: Tensor = self.projections[0](states_KRH.flatten(0, 1))
            logits_KRD = logits_KRD.view(*states_KRH.shape[:2], -1)
        else:
            pairs = zip(self.projections, states_KRH, strict=True)
            logits_KRD = torch.stack([projection(state_RH) for projection, state_RH in pairs])
        return logits_KRD.to(wide_dtype(self.dtype))
