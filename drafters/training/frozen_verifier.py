"""The verifier during training: whole padded sequences at once, nothing cached, no gradients.

Answers are the verifier's own greedy text, so its arg-max behind every generated token is known,
and only the logits that a drafter can express are computed.

Legend: B sequences, T positions, H hidden, P taps, V vocabulary, D draft vocabulary, L wanted rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from drafters.training.whole_sequences import PaddedBatch
from engine.interfaces import Site
from engine.models.decoder import Decoder
from engine.models.layers import Linear, wide_dtype
from engine.models.packed import pack_linears


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifierStates:
    """What a pass over a batch showed."""

    taps: Tensor
    """[B, T, P, H]: residual states, Hugging Face's ``hidden_states[j]`` for each tap j."""
    final: Tensor
    """[B, T, H]: the last layer's output, not normalised."""


class FrozenVerifier:
    """A decoder that is only looked at. Its linear layers are packed: nothing else may use it."""

    def __init__(self, model: Decoder) -> None:
        assert model.embed is not None, "training needs the whole verifier"
        assert isinstance(model.head, Linear)
        self.head_weight = model.head.weight.detach()
        """[V, H]."""
        self.model = model.requires_grad_(requires_grad=False).eval()
        pack_linears(model)

    @torch.no_grad()
    def states(self, token_ids_BT: Tensor, taps: tuple[int, ...]) -> VerifierStates:
        """One causal pass; padding on the right changes nothing before it."""
        batch, length = token_ids_BT.shape
        context = PaddedBatch(batch, length, frozenset(tap - 1 for tap in taps))
        final = self.model(token_ids_BT.flatten(), context)
        shown = [context.observed[tap - 1, Site.MLP] for tap in taps]
        states = torch.stack(shown, dim=1) if shown else final[:, None][:, :0]
        return VerifierStates(
            taps=states.view(batch, length, *states.shape[1:]),
            final=final.view(batch, length, -1),
        )

    @torch.no_grad()
    def logits(self, hidden_LH: Tensor, draft_ids_D: Tensor | None = None) -> Tensor:
        """[L, D] logits of some tokens, or [L, V] of all; fp32 (fp64 for fp64)."""
        assert self.model.norm is not None
        weight = self.head_weight if draft_ids_D is None else self.head_weight[draft_ids_D]
        logits = functional.linear(self.model.norm(hidden_LH), weight)
        return logits.to(wide_dtype(self.model.dtype))


class RememberingVerifier(FrozenVerifier):
    """Keeps every sequence's states in memory: later epochs need no verifier.

    Takes (taps + 1) x H numbers per token in the verifier's dtype: 4.6 kB for SmolLM2 in bfloat16.
    """

    def __init__(self, model: Decoder) -> None:
        super().__init__(model)
        self._known: dict[bytes, VerifierStates] = {}

    @torch.no_grad()
    def states(self, token_ids_BT: Tensor, taps: tuple[int, ...]) -> VerifierStates:
        """The remembered states, or those of a new pass over the whole batch."""
        keys = [bytes(str(taps), "ascii") + row.numpy().tobytes() for row in token_ids_BT]
        if any(key.rstrip(b"\0") not in self._known for key in keys):
            fresh = super().states(token_ids_BT, taps)
            for key, tap_states, final in zip(keys, fresh.taps, fresh.final, strict=True):
                self._known[key.rstrip(b"\0")] = VerifierStates(taps=tap_states, final=final)
            return fresh
        found = [self._known[key.rstrip(b"\0")] for key in keys]
        length = token_ids_BT.shape[1]
        return VerifierStates(
            taps=torch.stack([_fitted(one.taps, length) for one in found]),
            final=torch.stack([_fitted(one.final, length) for one in found]),
        )


def _fitted(states: Tensor, length: int) -> Tensor:
    """The first ``length`` rows; zeros behind them, where there is only padding."""
    kept = states[:length]
    if len(kept) == length:
        return kept
    return torch.cat([kept, kept.new_zeros(length - len(kept), *kept.shape[1:])])
