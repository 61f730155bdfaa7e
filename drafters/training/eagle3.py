"""Training of an EAGLE-3 head: training-time test against the verifier's own distribution.

EAGLE-3 (arXiv 2503.01840, section 3.2): chains of ``num_steps`` drafts, unrolled from every
position at once (``drafters.training.eagle3_chains``). Tokens are the verifier's own; step j of the
chain at column t predicts token t + 2 + j.

Unlike the published training, a chain ends where its draft is not the verifier's token: what comes
behind a rejected draft is never looked at when decoding. The steps' losses are sums over the live
chains, divided by all chains, so each step weighs as often as it is reached.

A chain starts where the pending token (t + 1) was generated, and a step counts where the predicted
one was; the public codes move neither or one end of that mask with the steps (SpecForge issue 885).

Legend: B sequences, T columns, R = B·T rows, H hidden, L live chains, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drafters.eagle3_head import Eagle3Head
from drafters.training.batches import Batch
from drafters.training.eagle3_chains import DraftChains
from drafters.training.frozen_verifier import FrozenVerifier, VerifierStates
from drafters.training.losses import (
    masked_mean,
    shift_targets,
    stepped_acceptance,
    training_time_test_weights,
    weighted_total,
)
from drafters.training.task import ACCEPTANCE, LossAndMetrics
from engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Training:
    """What is particular to training EAGLE-3."""

    num_steps: int = 5
    """Unrolled drafts: the length of the chain that the head learns to survive."""
    decay: float = 1.0
    """Weight of each further step's loss; 0.8 where no chain is given up, as published."""

    def __post_init__(self) -> None:
        training_time_test_weights(self.num_steps, self.decay)


class Eagle3Task:
    """Implements ``drafters.training.task.TrainingTask``."""

    def __init__(
        self, head: Eagle3Head, verifier: FrozenVerifier, settings: Eagle3Training
    ) -> None:
        head.unfreeze()
        self.head, self._verifier = head, verifier
        self._weights = training_time_test_weights(settings.num_steps, settings.decay)
        self._draft_ids = head.vocabulary.draft_ids

    @property
    def module(self) -> nn.Module:
        """The head."""
        return self.head

    def loss(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """Σ decay^j · cross-entropy of step j, and the accepted length of chains when decoding."""
        del generator
        head = self.head
        states = self._verifier.states(batch.token_ids, head.config.taps)
        teacher = self._teacher(batch, states)
        starts_BT = self._mask(batch, 0)
        chains = DraftChains(head, batch, starts_BT.flatten().nonzero()[:, 0])
        accepted_R = torch.zeros(starts_BT.numel(), dtype=torch.int64)
        hidden_LH = chains.first(head.fc(states.taps.flatten(0, 1).to(head.fc.weight.dtype)))
        losses = []
        for step in range(len(self._weights)):
            log_q_LV = head.logits(hidden_LH).log_softmax(-1)
            wanted_L = chains.moved(step + 2)[chains.rows_L]
            losses.append(teacher.cross_entropy(log_q_LV, wanted_L, chains.rows_L + step + 1))
            agree_L = log_q_LV.argmax(-1) == self._draft_ids[wanted_L]
            accepted_R[chains.rows_L[agree_L]] += 1
            if step + 1 < len(self._weights):
                live_L = agree_L & self._mask(batch, step + 1).flatten()[chains.rows_L]
                if not live_L.any():
                    break
                chains.keep(live_L)
                hidden_LH = chains.next(head.next_features(hidden_LH[live_L]))
        accepted_BT = accepted_R.view_as(starts_BT)
        metrics = {
            ACCEPTANCE: stepped_acceptance(accepted_BT, starts_BT),
            "first_agreement": float(masked_mean((accepted_BT > 0).float(), starts_BT)),
        }
        total = weighted_total(losses, self._weights[: len(losses)])
        return total / max(1, int(starts_BT.sum())), metrics

    def _mask(self, batch: Batch, step: int) -> Tensor:
        """[B, T]: pending and predicted token were generated."""
        return shift_targets(batch.generated, 1) & shift_targets(batch.generated, step + 2)

    @torch.no_grad()
    def _teacher(self, batch: Batch, states: VerifierStates) -> _Teacher:
        """The verifier's distributions, once for all steps.

        Over the draft vocabulary: the softmax of those logits alone is the softmax of all of them,
        renormalised.
        """
        wanted_BT = shift_targets(batch.generated, 1)
        target_ids = self.head.vocabulary.target_ids
        probs_LV = self._verifier.logits(states.final[wanted_BT], target_ids).softmax(-1)
        row_of = torch.full(wanted_BT.shape, -1)
        row_of[wanted_BT] = torch.arange(len(probs_LV))
        return _Teacher(probs=probs_LV, row_of=row_of.flatten(), draft_ids=self._draft_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Teacher:
    """What the verifier says behind every generated token, over the draft vocabulary."""

    probs: Tensor
    """[generated tokens, V]."""
    row_of: Tensor
    """[B·T]: the row of ``probs`` behind a position, -1 where there is none."""
    draft_ids: Tensor
    """[vocabulary] draft id of each token, -1 where there is none."""

    def cross_entropy(self, log_q_LV: Tensor, token_ids_L: Tensor, behind_L: Tensor) -> Tensor:
        """Sum over the rows whose token can be drafted; ``behind_L`` are the tokens' own rows."""
        taught_L = self.draft_ids[token_ids_L] >= 0
        probs = self.probs[self.row_of[behind_L[taught_L]]].to(log_q_LV.dtype)
        return -(probs * log_q_LV[taught_L]).sum()


@torch.no_grad()
def initialise_from_verifier(
    head: Eagle3Head, model: Decoder, layer: int, generator: torch.Generator
) -> None:
    """Start from what the verifier knows instead of noise.

    Its embedding, the drafted rows of its head, its final norm, and one of its layers: the layer's
    attention reads the feature half of the input, the half of the token's embedding starts near
    zero. The feature starts as the highest tap. Needs equal widths, and a model whose matrices are
    not packed.
    """
    head.initialise(generator, std=0.01)
    hidden = head.config.layer.hidden_size
    theirs = {name: value.to(head.dtype) for name, value in model.named_parameters()}
    theirs.setdefault("head.weight", theirs["embed.weight"])
    ours = dict(head.named_parameters())
    ours["embed.weight"].copy_(theirs["embed.weight"])
    ours["lm_head.weight"].copy_(theirs["head.weight"][head.vocabulary.target_ids])
    ours["norm.weight"].copy_(theirs["norm.weight"])
    ours["fc.weight"][:, -hidden:] += torch.eye(hidden, dtype=head.dtype)
    part = f"layers.{layer}."
    ours["midlayer.hidden_norm.weight"].copy_(theirs[f"{part}attention.norm.weight"])
    ours["midlayer.qkv.weight"][:, hidden:] = theirs[f"{part}attention.qkv.weight"]
    ours["midlayer.o.weight"].copy_(theirs[f"{part}attention.o.weight"])
    for name in ("norm", "gate_up", "down"):
        ours[f"midlayer.mlp.{name}.weight"].copy_(theirs[f"{part}mlp.{name}.weight"])
