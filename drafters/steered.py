"""Drafts with a small model whose MLPs follow the verifier's states (SD², arXiv 2511.09844).

The steering vector is read at row NA, the row whose logits emitted the pending token, and is fresh
in every draft: all rows of a draft run under it, those of earlier drafts keep the keys and values
that their own vector gave them. What a request starts with is read unsteered, up to the token
before row NA: for a request that drafts from its first step on, all prompt tokens but the last
(ETH-DISCO/SD-square, main.py, ``generate``).

The layers are steered from outside: a module takes the place of a decoder layer's MLP. Native
kernels know no bias, so steered models run on packed linear layers.

Legend: R rows, H hidden, I MLP size, V verifier hidden size, N steered layers, B bias width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafters.small_model import SmallModelDrafter
from drafters.steering import (
    BiasNetwork,
    ConditionalSteeringHead,
    ResidualSteeringHead,
    SteeringHead,
)
from engine.models.decoder import Attention, Decoder, DecoderLayer, GatedMLP
from engine.records import Draft, SequenceView


class SteerableMLP(nn.Module):
    """A gated MLP with a signal that changes what it adds; None leaves it bit for bit as it was."""

    def __init__(self, mlp: GatedMLP) -> None:
        super().__init__()
        self.norm, self.gate_up, self.down = mlp.norm, mlp.gate_up, mlp.down
        self.signal: Tensor | None = None
        """One vector for all rows, or one per row."""

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """[R, H] -> [R, H]."""
        gate_RI, up_RI = self.gate_up(self.norm(hidden_RH)).chunk(2, dim=-1)
        added_RH: Tensor = self.down(functional.silu(gate_RI) * self.steer_up(up_RI))
        return self.steer_output(added_RH)

    def steer_up(self, up_RI: Tensor) -> Tensor:
        """The up-projection's output before the gate product: SD²'s place for the bias."""
        return up_RI if self.signal is None else up_RI + self.signal

    def steer_output(self, added_RH: Tensor) -> Tensor:
        """What is added to the residual stream."""
        return added_RH


class OutputSteeredMLP(SteerableMLP):
    """The bias is added behind the MLP."""

    def steer_up(self, up_RI: Tensor) -> Tensor:
        """Left alone."""
        return up_RI

    def steer_output(self, added_RH: Tensor) -> Tensor:
        """The bias, of the residual stream's width, on top."""
        return added_RH if self.signal is None else added_RH + self.signal


class ConditionalMLP(SteerableMLP):
    """The bias is computed from the signal (the steering vector) and each row's normed input."""

    def __init__(self, mlp: GatedMLP, network: BiasNetwork) -> None:
        super().__init__(mlp)
        self._network = (network,)
        """In a tuple, so that it stays the head's and does not become a part of the decoder."""
        self._input_RH: Tensor | None = None

    def remember_input(self, attention: Attention) -> None:
        """Keep what the norm in front of ``attention`` gives, in every pass."""
        attention.norm.register_forward_hook(self._remember)

    def steer_up(self, up_RI: Tensor) -> Tensor:
        """Adds the network's bias."""
        if self.signal is None:
            return up_RI
        assert self._input_RH is not None, "attention runs before the MLP"
        bias_RI: Tensor = self._network[0](self.signal, self._input_RH)
        return up_RI + bias_RI

    def _remember(self, norm: nn.Module, arguments: tuple[Tensor, ...], output_RH: Tensor) -> None:
        del norm, arguments
        self._input_RH = output_RH


class Steering:
    """The head, and the MLPs of one decoder that it moves."""

    def __init__(self, head: SteeringHead, mlps: list[SteerableMLP], *, dtype: torch.dtype) -> None:
        self.head, self._mlps, self._dtype = head, mlps, dtype

    def clear(self) -> None:
        """Rows run unsteered from now on."""
        for mlp in self._mlps:
            mlp.signal = None

    def follow(self, vector_1V: Tensor) -> None:
        """Rows run under this steering vector from now on."""
        self.set_signals(self.head(vector_1V.to(self._dtype))[0])

    def set_signals(self, signals: Tensor) -> None:
        """One signal per layer, first dimension N: [N, B], or [N, R, B] for one per row."""
        for mlp, signal in zip(self._mlps, signals.unbind(0), strict=True):
            mlp.signal = signal


def install_steering(model: Decoder, head: SteeringHead) -> Steering:
    """Make the head's layers of a decoder steerable; in place, before other kernels are chosen.

    The head takes the decoder's dtype.
    """
    head.to(model.dtype)
    mlps = []
    for row, index in enumerate(head.shape.layers):
        layer = model.layers[str(index)]
        assert isinstance(layer, DecoderLayer)
        layer.mlp = steerable = _steerable(layer, head, row)
        mlps.append(steerable)
    return Steering(head, mlps, dtype=model.dtype)


def _steerable(layer: DecoderLayer, head: SteeringHead, row: int) -> SteerableMLP:
    mlp, attention = layer.mlp, layer.attention
    assert isinstance(mlp, GatedMLP)
    if isinstance(head, ConditionalSteeringHead):
        assert isinstance(attention, Attention)
        network = head.networks[row]
        assert isinstance(network, BiasNetwork)
        conditional = ConditionalMLP(mlp, network)
        conditional.remember_input(attention)
        return conditional
    if isinstance(head, ResidualSteeringHead):
        return OutputSteeredMLP(mlp)
    return SteerableMLP(mlp)


class SteeredDrafter:
    """Implements ``engine.interfaces.NeuralDrafter`` with a drafter of a steered model."""

    def __init__(self, drafter: SmallModelDrafter, steering: Steering) -> None:
        self._drafter, self._steering = drafter, steering

    @torch.inference_mode()
    def draft(self, view: SequenceView) -> Draft:
        """Steer by row NA and draft; a request that is new is read unsteered up to row NA."""
        assert view.features is not None, "the verifier pass reads this drafter's projection"
        if not self._drafter.knows(view.request_id):
            self._steering.clear()
            self._drafter.read(view, len(view.token_ids) - 2)
        self._steering.follow(view.features[-1:])
        return self._drafter.draft(view)

    def forget(self, request_id: str) -> None:
        """Drop the request's context."""
        self._drafter.forget(request_id)
