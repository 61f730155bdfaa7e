"""SD²'s steering head: verifier states become a bias for every MLP of a small drafter.

Berdoz, Rheinboldt, Wattenhofer, Steering Pretrained Drafters during Speculative Decoding (arXiv
2511.09844; facts from ETH-DISCO/SD-square, src/model.py and main.py). With l, m, h the residual
states behind a low, a middle and a high verifier layer at row NA:

    g = W_hml [l; m; h] + bias            the steering vector, computed where the verifier runs
    b_i = W_s,i LayerNorm(g)              one bias per steered drafter layer i
    W_down (silu(W_gate a) * (W_up a + b_i))

W_s is zero at first, so an untrained head changes nothing. Two ablations of the paper are types of
their own: a bias behind the MLP, and one that a small network computes from g and the row's state.
The heads are modules whose parameters can be trained; inference leaves them alone.

Legend: V verifier hidden size, N steered layers, I drafter's MLP size, B width of a bias (I, or the
drafter's hidden size), H drafter's hidden size, R rows; "..." any leading dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.features import FeatureProjection
from engine.models.config import ModelConfig
from engine.models.layers import Linear

_CPU = torch.device("cpu")

_LAYER_NORM_EPS = 1e-5
"""PyTorch's default, which the public checkpoints were trained with."""

_MIN_LAYERS = 8
"""With fewer, layer 3, the middle and the third last are not three layers in that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringShape:
    """Sizes of a head, and the layers it stands between."""

    verifier_hidden_size: int
    """V."""
    taps: tuple[int, int, int]
    """Ascending indices of Hugging Face's ``hidden_states`` of the verifier: low, middle, high."""
    drafter_hidden_size: int
    """H."""
    drafter_intermediate_size: int
    """I."""
    layers: tuple[int, ...]
    """Steered layers of the drafter, in the order of the head's rows."""

    def __post_init__(self) -> None:
        low, middle, high = self.taps
        if not 0 < low < middle < high:
            raise ValueError(f"taps are {self.taps}; they must be positive and ascending")
        if not self.layers or len(set(self.layers)) < len(self.layers) or min(self.layers) < 0:
            raise ValueError(f"layers are {self.layers}; they must be different and not negative")

    def check_verifier(self, verifier: ModelConfig) -> None:
        """Raise ``ValueError`` unless the head was made for a verifier of this shape."""
        _same("verifier hidden size", self.verifier_hidden_size, verifier.hidden_size)
        if self.taps[-1] > verifier.num_layers:
            raise ValueError(
                f"the steering head reads behind {self.taps[-1]} verifier layers, but there are "
                f"only {verifier.num_layers}"
            )

    def check_drafter(self, drafter: ModelConfig) -> None:
        """Raise ``ValueError`` unless the head was made for a drafter of this shape."""
        _same("drafter hidden size", self.drafter_hidden_size, drafter.hidden_size)
        _same("drafter MLP size", self.drafter_intermediate_size, drafter.intermediate_size)
        if max(self.layers) >= drafter.num_layers:
            raise ValueError(
                f"the steering head steers drafter layer {max(self.layers)}, but the layers are 0 "
                f"to {drafter.num_layers - 1}"
            )


def steering_shape(verifier: ModelConfig, drafter: ModelConfig) -> SteeringShape:
    """The paper's choice: every drafter layer steered from three verifier layers."""
    return SteeringShape(
        verifier_hidden_size=verifier.hidden_size,
        taps=default_taps(verifier.num_layers),
        drafter_hidden_size=drafter.hidden_size,
        drafter_intermediate_size=drafter.intermediate_size,
        layers=tuple(range(drafter.num_layers)),
    )


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """Behind layer 3, the middle one and the third last: (3, 16, 29) of 32, as published.

    Raises:
        ValueError: the verifier is too shallow.
    """
    if num_layers < _MIN_LAYERS:
        raise ValueError(
            f"a verifier of {num_layers} layers has no default taps for steering: it needs "
            f"{_MIN_LAYERS} layers, or taps of your choice"
        )
    return 3, num_layers // 2, num_layers - 3


class StateMix(nn.Module):
    """W_hml and its bias: three states side by side to the steering vector; a sum at first."""

    def __init__(self, size: int, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        identity = torch.eye(size, dtype=dtype)
        self.weight = _parameter(torch.cat([identity] * 3, dim=1))
        """[V, 3 V], blocks in the order low, middle, high."""
        self.bias = _parameter(torch.zeros(size, dtype=dtype))
        """[V]."""

    def forward(self, states: Tensor) -> Tensor:
        """[..., 3 V] -> [..., V]."""
        return functional.linear(states, self.weight, self.bias)

    def projection(self, taps: tuple[int, ...], dtype: torch.dtype) -> FeatureProjection:
        """The same map for the verifier's side, cut into one product per tapped layer."""
        weight = self.weight.detach().to(dtype)
        return FeatureProjection(
            taps=taps,
            weights=tuple(block.contiguous() for block in weight.chunk(len(taps), dim=1)),
            bias=self.bias.detach().to(dtype),
        )


class SteeringHead(nn.Module):
    """SD²: LayerNorm, then W_s; the bias enters between the up-projection and the gate product."""

    variant: ClassVar[str] = "merged"

    def __init__(self, shape: SteeringShape, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape = shape
        self.mix = StateMix(shape.verifier_hidden_size, dtype=dtype)
        self._build(dtype)

    def projection(self, dtype: torch.dtype) -> FeatureProjection:
        """What the verifier computes of every row for this head."""
        return self.mix.projection(self.shape.taps, dtype)

    def forward(self, vector: Tensor) -> Tensor:
        """The layers' biases of a steering vector: [..., V] -> [..., N, B]."""
        biases: Tensor = self.scale(self.norm(vector))
        return biases.view(*vector.shape[:-1], len(self.shape.layers), -1)

    def _build(self, dtype: torch.dtype) -> None:
        size, num_layers = self.shape.verifier_hidden_size, len(self.shape.layers)
        self.norm = nn.LayerNorm(size, eps=_LAYER_NORM_EPS, dtype=dtype)
        self.norm.requires_grad_(requires_grad=False)
        self.scale: nn.Module = _zero_linear(size, num_layers * self._bias_width, dtype)

    @property
    def _bias_width(self) -> int:
        return self.shape.drafter_intermediate_size


class ResidualSteeringHead(SteeringHead):
    """Ablation: the bias is added behind the MLP, to the residual stream ("simple")."""

    variant = "simple"

    @property
    def _bias_width(self) -> int:
        return self.shape.drafter_hidden_size


class ConditionalSteeringHead(SteeringHead):
    """Ablation: per layer, a network of g and the row's normed input gives the bias ("advanced").

    The steering vector is taken as it is, without LayerNorm; the linear maps have no biases. Their
    first matrices are drawn with a fixed seed.
    """

    variant = "advanced"

    def forward(self, vector: Tensor) -> Tensor:
        """The vector for every layer: [..., V] -> [..., N, V]."""
        return vector.unsqueeze(-2).expand(*vector.shape[:-1], len(self.shape.layers), -1)

    def _build(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self.networks = nn.ModuleList(
            BiasNetwork(self.shape, generator, dtype=dtype) for _ in self.shape.layers
        )


class BiasNetwork(nn.Module):
    """Two matrices with a GELU between them; the second is zero at first."""

    def __init__(
        self, shape: SteeringShape, generator: torch.Generator, *, dtype: torch.dtype
    ) -> None:
        super().__init__()
        inputs = shape.verifier_hidden_size + shape.drafter_hidden_size
        inner = shape.verifier_hidden_size
        self.input: nn.Module = _random_linear(inputs, inner, dtype, generator)
        self.output: nn.Module = _zero_linear(inner, shape.drafter_intermediate_size, dtype)

    def forward(self, vector: Tensor, normed_RH: Tensor) -> Tensor:
        """[V] or [R, V], and [R, H] -> [R, I]."""
        vector_RV = vector.expand(normed_RH.shape[0], -1)
        inner: Tensor = self.input(torch.cat((vector_RV, normed_RH), dim=-1))
        bias_RI: Tensor = self.output(functional.gelu(inner))
        return bias_RI


HEADS: dict[str, type[SteeringHead]] = {
    head.variant: head for head in (SteeringHead, ResidualSteeringHead, ConditionalSteeringHead)
}
"""The variants by the names that the public code gives them."""


def _same(name: str, wanted: int, found: int) -> None:
    if wanted != found:
        raise ValueError(f"the steering head was made for {name} {wanted}, not {found}")


def _parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _zero_linear(inputs: int, outputs: int, dtype: torch.dtype) -> Linear:
    linear = Linear(inputs, outputs, dtype=dtype, device=_CPU)
    nn.init.zeros_(linear.weight)
    return linear


def _random_linear(
    inputs: int, outputs: int, dtype: torch.dtype, generator: torch.Generator
) -> Linear:
    """PyTorch's default for a linear layer: uniform within one over the root of the inputs."""
    linear = Linear(inputs, outputs, dtype=dtype, device=_CPU)
    bound = inputs**-0.5
    nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
    return linear
