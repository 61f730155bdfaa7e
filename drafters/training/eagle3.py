"""Training of an EAGLE-3 head: training-time test against the verifier's own distribution.

EAGLE-3 (arXiv 2503.01840, section 3.2). A chain of ``num_steps`` drafts is unrolled at every
position at once: step j pairs the feature of column t with token t + 1 + j and predicts token
t + 2 + j. The features of step 0 are the verifier's, later ones the head's own outputs; tokens are
the true ones. A row of step j sees the keys of step 0 up to its column, and of steps 1 to j only
its own column's, which is what it will find in its cache at run time.

The loss counts where the pending token (t + 1) and the predicted one were both generated and the
draft vocabulary has the predicted one. Both ends of that mask move with the step; the public codes
move neither or one of them (SpecForge issue 885).

Legend: B sequences, T columns, H hidden, Q query heads, K kv heads, D head_dim, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drafters.eagle3_head import Eagle3Head
from drafters.training.batches import Batch
from drafters.training.frozen_verifier import FrozenVerifier, VerifierStates
from drafters.training.losses import (
    expected_accepted_length,
    masked_mean,
    shift_targets,
    training_time_test_weights,
    weighted_total,
)
from drafters.training.task import ACCEPTANCE, LossAndMetrics
from engine.models.decoder import Decoder
from engine.models.layers import wide_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Training:
    """What is particular to training EAGLE-3."""

    num_steps: int = 5
    """Unrolled drafts: the length of the chain that the head learns to survive."""
    decay: float = 0.8
    """Weight of each further step's loss."""

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
        """Σ decay^j · cross-entropy of step j, and the expected accepted length of a chain."""
        del generator
        states = self._verifier.states(batch.token_ids, self.head.config.taps)
        columns, teacher = _Columns(self.head, batch), self._teacher(batch, states)
        features = self.head.fc(states.taps.flatten(0, 1).to(self.head.fc.weight.dtype))
        losses, agreements, masks = [], [], []
        for step in range(len(self._weights)):
            hidden_RH = columns.run(features, step)
            mask = self._mask(batch, step).flatten()
            log_q = self.head.logits(hidden_RH[mask]).log_softmax(-1)
            losses.append(teacher.cross_entropy(log_q, mask, step))
            agreements.append(teacher.agreement(log_q, mask, step))
            masks.append(mask)
            features = self.head.next_features(hidden_RH)
        accepted = expected_accepted_length(torch.stack(agreements), torch.stack(masks))
        first = float(masked_mean(agreements[0].float(), masks[0]))
        metrics = {ACCEPTANCE: accepted, "first_agreement": first}
        return weighted_total(losses, self._weights), metrics

    def _mask(self, batch: Batch, step: int) -> Tensor:
        """[B, T]: pending and predicted token were generated."""
        return shift_targets(batch.generated, 1) & shift_targets(batch.generated, step + 2)

    @torch.no_grad()
    def _teacher(self, batch: Batch, states: VerifierStates) -> _Teacher:
        """The verifier's distributions, once for all steps."""
        wanted_BT = shift_targets(batch.generated, 1)
        target_ids = self.head.vocabulary.target_ids
        probs_LV = self._verifier.logits(states.final[wanted_BT], target_ids).softmax(-1)
        row_of = torch.full(wanted_BT.shape, -1)
        row_of[wanted_BT] = torch.arange(len(probs_LV))
        return _Teacher(
            probs=probs_LV, row_of=row_of, token_ids=batch.token_ids, draft_ids=self._draft_ids
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Teacher:
    """What the verifier says behind every generated token, over the draft vocabulary."""

    probs: Tensor
    """[L, V]."""
    row_of: Tensor
    """[B, T]: the row of ``probs`` behind a position, -1 where there is none."""
    token_ids: Tensor
    draft_ids: Tensor
    """[vocabulary] draft id of each token, -1 where there is none."""

    def cross_entropy(self, log_q_LV: Tensor, mask_R: Tensor, step: int) -> Tensor:
        """Mean over the mask's rows whose token can be drafted; column t predicts behind t+1+j."""
        rows_L = _moved(self.row_of, step + 1).flatten()[mask_R]
        taught_L = self._drafted_ids(mask_R, step) >= 0
        probs = self.probs[rows_L[taught_L]].to(log_q_LV.dtype)
        return -(probs * log_q_LV[taught_L]).sum() / max(1, len(probs))

    @torch.no_grad()
    def agreement(self, log_q_LV: Tensor, mask_R: Tensor, step: int) -> Tensor:
        """[R] bool: the drafted token is the verifier's; False outside the mask."""
        agree_R = torch.zeros_like(mask_R)
        agree_R[mask_R] = log_q_LV.argmax(-1) == self._drafted_ids(mask_R, step)
        return agree_R

    def _drafted_ids(self, mask_R: Tensor, step: int) -> Tensor:
        """[L]: the draft id of the token that each row predicts."""
        return self.draft_ids[_moved(self.token_ids, step + 2).flatten()[mask_R]]


class _Columns:
    """The unrolled passes over one batch; keeps every step's keys and values."""

    def __init__(self, head: Eagle3Head, batch: Batch) -> None:
        self._head, self._batch = head, batch
        self._shape = batch.token_ids.shape
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        length = self._shape[1]
        head.reserve_positions(length + 64)
        self._future = torch.full((length, length), -torch.inf).triu(1)

    def run(self, features_RH: Tensor, step: int) -> Tensor:
        """[B·T, H]: the layer's output at every column."""
        batch, length = self._shape
        token_ids = _moved(self._batch.token_ids, step + 1).flatten()
        positions = torch.arange(step, length + step).repeat(batch)
        output: Tensor = self._head(features_RH, token_ids, positions, self._attend)
        return output

    def _attend(self, query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
        """Step 0's keys causally, later steps' keys of the own column only."""
        query = self._heads(query_RQD)
        self._keys.append(self._heads(key_RKD))
        self._values.append(self._heads(value_RKD))
        group = query.shape[1] // self._keys[0].shape[1]
        keys = [key.repeat_interleave(group, dim=1) for key in self._keys]
        values = [value.repeat_interleave(group, dim=1) for value in self._values]
        scale = query.shape[-1] ** -0.5
        causal = query @ keys[0].transpose(2, 3) * scale + self._future.to(query.dtype)
        own = [(query * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
        scores = torch.cat([causal, *own], dim=-1)
        weights = scores.softmax(-1, dtype=wide_dtype(query.dtype)).to(query.dtype)
        length = self._shape[1]
        output = weights[..., :length] @ values[0]
        for index, value in enumerate(values[1:]):
            output = output + weights[..., length + index, None] * value
        return output.transpose(1, 2).flatten(0, 1)

    def _heads(self, rows: Tensor) -> Tensor:
        """[B·T, heads, D] -> [B, heads, T, D]."""
        return rows.view(*self._shape, *rows.shape[1:]).transpose(1, 2)


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


def _moved(values_BT: Tensor, distance: int) -> Tensor:
    """What stands ``distance`` positions on, in place of every position; zeros beyond the end."""
    moved = torch.zeros_like(values_BT)
    if distance < values_BT.shape[1]:
        moved[:, : values_BT.shape[1] - distance] = values_BT[:, distance:]
    return moved
