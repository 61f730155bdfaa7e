"""Training of Medusa heads on a frozen verifier (Medusa-1), and what they are measured by.

Medusa (arXiv 2401.10774, section 2.2.1): head k, counted from 1, learns the token k places behind
the one that the verifier's own head emits, by cross-entropy; its loss weighs 0.8^k. Tokens are the
verifier's own answers. As in every training here, a row counts when its pending token and the
predicted one were generated.

Legend: B sequences, T columns, L rows whose pending token was generated, H hidden, K heads, D draft
vocabulary, N ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from drafters.medusa_heads import MedusaHeads
from drafters.static_tree import StaticTree
from drafters.training.batches import Batch
from drafters.training.frozen_verifier import FrozenVerifier
from drafters.training.fused_losses import fused_cross_entropy
from drafters.training.losses import shift_targets, stepped_acceptance, weighted_total
from drafters.training.task import ACCEPTANCE, LossAndMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaTraining:
    """What is particular to training Medusa heads."""

    num_heads: int = 4
    """Heads: the longest draft."""
    decay: float = 0.8
    """Head k's loss weighs decay^k."""
    ranks: int = 10
    """Likeliest tokens of a head that the static tree may use."""
    tree_nodes: int = 63
    """Draft tokens of the static tree that is kept; decoding may take fewer."""

    def __post_init__(self) -> None:
        for name in ("num_heads", "ranks", "tree_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {self.decay}.")


class MedusaTask:
    """Implements ``drafters.training.task.TrainingTask``."""

    def __init__(
        self, heads: MedusaHeads, verifier: FrozenVerifier, settings: MedusaTraining
    ) -> None:
        heads.unfreeze()
        self.heads, self._verifier = heads, verifier
        self._weights = [settings.decay**head for head in range(1, heads.config.num_heads + 1)]
        self._draft_ids = heads.vocabulary.draft_ids

    @property
    def module(self) -> nn.Module:
        """All heads."""
        return self.heads

    def loss(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """Σ decay^k · cross-entropy of head k, and the accepted length of the greedy chain."""
        del generator
        starts_BT, normed_LH = self._rows(batch)
        states_KLH = self.heads.states(normed_LH)
        targets_KL, counts_KL = targets(batch, self.heads.config.num_heads)
        losses, right_KL = [], torch.zeros_like(counts_KL)
        metrics = {}
        for head, counts_L in enumerate(counts_KL):
            wanted_L = self._draft_ids[targets_KL[head]]
            # A token outside the draft vocabulary cannot be learned.
            taught_L = counts_L & (wanted_L >= 0)
            found = fused_cross_entropy(
                states_KLH[head][taught_L], self.heads.projection(head), wanted_L[taught_L]
            )
            losses.append(found.loss)
            right_KL[head][taught_L] = found.agree
            share = right_KL[head].sum() / counts_L.sum().clamp(min=1)
            metrics[f"head_{head + 1}_right"] = float(share)
        chain_L = right_KL.long().cumprod(0).sum(0)
        metrics[ACCEPTANCE] = stepped_acceptance(_spread(chain_L, starts_BT), starts_BT)
        return weighted_total(losses, self._weights), metrics

    @torch.no_grad()
    def ranks(self, batch: Batch, num_ranks: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which of its likeliest tokens is right, per head and row.

        Returns (starts [B, T], rank [K, L], counts [K, L]); the rank is ``num_ranks`` where none
        of them is.
        """
        starts_BT, normed_LH = self._rows(batch)
        logits_KLD = self.heads.logits(normed_LH)
        targets_KL, counts_KL = targets(batch, self.heads.config.num_heads)
        top_KLN = self.heads.vocabulary.to_target(logits_KLD.topk(num_ranks, dim=-1).indices)
        right_KLN = top_KLN == targets_KL[..., None]
        missed_KL1 = ~right_KLN.any(-1, keepdim=True)
        ranks_KL = torch.cat([right_KLN, missed_KL1], dim=-1).int().argmax(-1)
        return starts_BT, torch.where(counts_KL, ranks_KL, num_ranks), counts_KL

    def _rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Where the pending token was generated [B, T], and the verifier's last states there."""
        starts_BT = shift_targets(batch.generated, 1)
        final_LH = self._verifier.states(batch.token_ids, ()).final[starts_BT]
        norm = self._verifier.model.norm
        assert norm is not None
        return starts_BT, norm(final_LH).to(self.heads.dtype)


def targets(batch: Batch, num_heads: int) -> tuple[Tensor, Tensor]:
    """The token that each head should say, and whether it was generated: [K, L] each."""
    starts_BT = shift_targets(batch.generated, 1)
    tokens, counts = [], []
    for head in range(1, num_heads + 1):
        distance = head + 1
        moved_BT = torch.zeros_like(batch.token_ids)
        moved_BT[:, : max(0, moved_BT.shape[1] - distance)] = batch.token_ids[:, distance:]
        tokens.append(moved_BT[starts_BT])
        counts.append(shift_targets(batch.generated, distance)[starts_BT])
    return torch.stack(tokens), torch.stack(counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadAccuracy:
    """What heads say on transcripts that they were not trained on."""

    shares: tuple[tuple[float, ...], ...]
    """[K][N]: how often a head's token of a rank is right."""
    batches: tuple[tuple[Tensor, Tensor], ...]
    """Per batch: where rows are [B, T], and the rank of each head's right token [K, L]."""

    def accepted_length(self, tree: StaticTree) -> float:
        """Accepted draft tokens per step of greedy decoding with a static tree."""
        accepted: list[Tensor] = []
        starts: list[Tensor] = []
        for starts_BT, ranks_KL in self.batches:
            accepted.extend(_spread(_tree_lengths(tree, ranks_KL), starts_BT))
            starts.extend(starts_BT)
        return stepped_acceptance(
            pad_sequence(accepted, batch_first=True), pad_sequence(starts, batch_first=True)
        )


def measure_heads(task: MedusaTask, batches: Iterable[Batch], num_ranks: int) -> HeadAccuracy:
    """Accuracies per head and rank, over all positions."""
    num_heads = task.heads.config.num_heads
    right_KN = torch.zeros(num_heads, num_ranks + 1)
    found = []
    for batch in batches:
        starts_BT, ranks_KL, counts_KL = task.ranks(batch, num_ranks)
        found.append((starts_BT, ranks_KL))
        for head in range(num_heads):
            seen_M = ranks_KL[head][counts_KL[head]]
            right_KN[head] += torch.bincount(seen_M, minlength=num_ranks + 1)
    shares_KN = right_KN / right_KN.sum(-1, keepdim=True).clamp(min=1)
    return HeadAccuracy(
        shares=tuple(tuple(row[:num_ranks]) for row in shares_KN.tolist()), batches=tuple(found)
    )


def _tree_lengths(tree: StaticTree, ranks_KL: Tensor) -> Tensor:
    """[L]: how deep the right tokens lie in the tree."""
    nodes = frozenset(tree.nodes)
    lengths = []
    for path in ranks_KL.T.tolist():
        depth = 0
        while depth < len(path) and tuple(path[: depth + 1]) in nodes:
            depth += 1
        lengths.append(depth)
    return torch.tensor(lengths, dtype=torch.int64)


def _spread(values_L: Tensor, starts_BT: Tensor) -> Tensor:
    """[L] -> [B, T]: 0 where there is no row."""
    values_BT = torch.zeros(starts_BT.shape, dtype=torch.int64)
    values_BT[starts_BT] = values_L
    return values_BT
