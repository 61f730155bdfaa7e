"""A drafter's smaller vocabulary: its ids, and the verifier's tokens that they mean.

EAGLE-3 heads predict only the most frequent tokens. Checkpoints store ``d2t``, which holds
*offsets* (target = draft + d2t[draft]), and ``t2d``, a membership mask over the verifier's tokens
(SafeAILab/EAGLE eagle/model/cnets.py).

Legend: D draft vocabulary, V verifier's vocabulary, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftVocabulary:
    """Which of the verifier's tokens a drafter can propose."""

    target_ids: Tensor
    """[D] int64, all different: the verifier's token of each draft id."""
    vocab_size: int
    """V."""

    def __post_init__(self) -> None:
        ids = self.target_ids
        outside = ((ids < 0) | (ids >= self.vocab_size)).nonzero()
        if len(outside):
            draft = int(outside[0])
            raise ValueError(
                f"draft id {draft} means token {int(ids[draft])}, which is outside the verifier's "
                f"vocabulary: allowed are 0 to {self.vocab_size - 1}"
            )
        num_different = len(set(ids.tolist()))
        if num_different != len(ids):
            raise ValueError(
                f"{len(ids)} draft ids mean {num_different} different tokens: every draft id must "
                "mean another token"
            )

    @classmethod
    def whole(cls, vocab_size: int) -> DraftVocabulary:
        """Every token of the verifier, under its own id."""
        return cls(target_ids=torch.arange(vocab_size), vocab_size=vocab_size)

    @classmethod
    def from_offsets(cls, d2t_D: Tensor, vocab_size: int) -> DraftVocabulary:
        """From a checkpoint's ``d2t``. Raises ``ValueError`` where it leaves the vocabulary."""
        ids = torch.arange(len(d2t_D)) + d2t_D.to(torch.int64)
        return cls(target_ids=ids, vocab_size=vocab_size)

    @classmethod
    def most_frequent(cls, counts_V: Tensor, size: int) -> DraftVocabulary:
        """The ``size`` tokens with the highest counts, ties to the lowest id; ids ascend."""
        order = counts_V.sort(descending=True, stable=True).indices
        return cls(target_ids=order[:size].sort().values, vocab_size=len(counts_V))

    @property
    def size(self) -> int:
        """D."""
        return len(self.target_ids)

    @property
    def offsets(self) -> Tensor:
        """``d2t``: [D] int64."""
        return self.target_ids - torch.arange(self.size)

    @property
    def membership(self) -> Tensor:
        """``t2d``: [V] bool."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask[self.target_ids] = True
        return mask

    @property
    def draft_ids(self) -> Tensor:
        """[V] int64: the draft id of each of the verifier's tokens, -1 where there is none."""
        ids = torch.full((self.vocab_size,), -1)
        ids[self.target_ids] = torch.arange(self.size)
        return ids

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """The verifier's tokens of draft ids, any shape."""
        return self.target_ids[draft_ids]

    def spread(self, probabilities_RD: Tensor) -> Tensor:
        """[R, D] -> [R, V]: over the verifier's vocabulary, zero where no draft id points."""
        spread = probabilities_RD.new_zeros(len(probabilities_RD), self.vocab_size)
        spread[:, self.target_ids] = probabilities_RD
        return spread
