"""Where steering enters, by hand-computed MLPs, and that an untrained head changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drafters.steered import SteerableMLP, Steering, install_steering
from drafters.steering import (
    HEADS,
    ConditionalSteeringHead,
    ResidualSteeringHead,
    SteeringHead,
    SteeringShape,
    default_taps,
    steering_shape,
)
from engine.models.decoder import Attention, Decoder, GatedMLP
from engine.models.layers import Linear
from engine.models.packed import pack_linears
from tests.support.causal import CausalContext
from tests.support.engines import random_decoder
from tests.support.tiny import LLAMA2, QWEN3

VERIFIER_HIDDEN = 24
TOKENS = torch.tensor([4, 8, 15, 16, 23, 42])


def shape_for(layers: tuple[int, ...] = (0, 1, 2)) -> SteeringShape:
    return SteeringShape(
        verifier_hidden_size=VERIFIER_HIDDEN,
        taps=(1, 2, 3),
        drafter_hidden_size=LLAMA2.hidden_size,
        drafter_intermediate_size=LLAMA2.intermediate_size,
        layers=layers,
    )


def randomise(head: SteeringHead, seed: int = 7) -> SteeringHead:
    """A head as if trained: nothing is zero or the identity."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(noise * parameter.shape[-1] ** -0.5)
    return head


def steered(
    kind: type[SteeringHead], layers: tuple[int, ...] = (0, 1, 2)
) -> tuple[Decoder, Steering]:
    model = random_decoder(LLAMA2, seed=2, dtype=torch.float64)
    head = randomise(kind(shape_for(layers), dtype=torch.float64))
    return model, install_steering(model, head)


def vector(seed: int = 1) -> Tensor:
    """[1, V]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, VERIFIER_HIDDEN, generator=generator, dtype=torch.float64)


def run(model: Decoder) -> Tensor:
    hidden: Tensor = model(TOKENS, CausalContext(len(TOKENS)))
    return hidden


def reference(model: Decoder, head: SteeringHead, vector_V: Tensor) -> Tensor:
    """The whole forward pass with the paper's formulae, layer by layer, from raw weights."""
    plain = random_decoder(LLAMA2, seed=2, dtype=torch.float64)
    weights = dict(model.named_parameters())
    hidden: Tensor = plain.embed(TOKENS)  # type: ignore[misc]
    context = CausalContext(len(TOKENS))
    for index, layer in enumerate(plain.layers.values()):
        attention = cast("Attention", layer.attention)
        normed = attention.norm(hidden)
        hidden = hidden + attention(hidden, context)
        middle = cast("GatedMLP", layer.mlp).norm(hidden)
        gate, up = (middle @ weights[f"layers.{index}.mlp.gate_up.weight"].T).chunk(2, -1)
        down = weights[f"layers.{index}.mlp.down.weight"]
        added = torch.zeros(())
        if index in head.shape.layers:
            up, added = steer(head, head.shape.layers.index(index), vector_V, normed, up)
        hidden = hidden + (functional.silu(gate) * up) @ down.T + added
    return hidden


def steer(
    head: SteeringHead, row: int, vector_V: Tensor, normed: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    """(up-projection's output, what is added behind the MLP) of one steered layer."""
    state = dict(head.named_parameters())
    if isinstance(head, ConditionalSteeringHead):
        joined = torch.stack([torch.cat((vector_V, one)) for one in normed])
        inner = functional.gelu(joined @ state[f"networks.{row}.input.weight"].T)
        return up + inner @ state[f"networks.{row}.output.weight"].T, torch.zeros(())
    centred = vector_V - vector_V.mean()
    scaled = centred / (centred.square().mean() + 1e-5).sqrt()
    normal = scaled * state["norm.weight"] + state["norm.bias"]
    width = state["scale.weight"].shape[0] // len(head.shape.layers)
    bias = state["scale.weight"][row * width : (row + 1) * width] @ normal
    return (up, bias) if isinstance(head, ResidualSteeringHead) else (up + bias, torch.zeros(()))


@pytest.mark.parametrize("kind", HEADS.values())
@pytest.mark.parametrize("layers", [(0, 1, 2), (2, 0)])
def test_steering_enters_where_the_paper_says(
    kind: type[SteeringHead], layers: tuple[int, ...]
) -> None:
    """Catches a bias at another place, of another layer, or without the LayerNorm."""
    model, steering = steered(kind, layers)
    unsteered = run(model)
    steering.follow(vector())
    found = run(model)
    torch.testing.assert_close(found, reference(model, steering.head, vector()[0]))
    assert not torch.allclose(found, unsteered)


def test_an_mlp_computed_by_hand() -> None:
    """SD²'s formula on numbers that fit on paper: one feature, one unit, no norm."""
    model = random_decoder(replace(LLAMA2, num_layers=1), dtype=torch.float64)
    mlp = SteerableMLP(cast("GatedMLP", model.layers["0"].mlp))
    mlp.norm = cast("torch.nn.Module", torch.nn.Identity())  # type: ignore[assignment]
    mlp.gate_up = one_linear([[2.0], [3.0]])
    mlp.down = one_linear([[0.5]])
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    silu = 2.0 / (1.0 + torch.e**-2.0)
    assert mlp(hidden).item() == pytest.approx(0.5 * silu * 3.0)
    mlp.signal = torch.tensor([4.0], dtype=torch.float64)
    assert mlp(hidden).item() == pytest.approx(0.5 * silu * (3.0 + 4.0))


def one_linear(rows: list[list[float]]) -> Linear:
    weight = torch.tensor(rows, dtype=torch.float64)
    outputs, inputs = weight.shape
    linear = Linear(inputs, outputs, dtype=torch.float64, device=torch.device("cpu"))
    linear.weight.data.copy_(weight)
    return linear


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", HEADS.values())
def test_an_untrained_head_changes_no_bit(kind: type[SteeringHead], dtype: torch.dtype) -> None:
    """Catches a start of training that is worse than the drafter itself."""
    plain, model = (random_decoder(QWEN3, seed=2, dtype=dtype) for _ in range(2))
    shape = replace(shape_for(), drafter_hidden_size=QWEN3.hidden_size)
    head = kind(shape)
    steering = install_steering(model, head)
    for module in (plain, model, head):
        pack_linears(module)
    expected = run(plain)
    assert torch.equal(run(model), expected)
    steering.follow(vector())
    assert torch.equal(run(model), expected)
    assert torch.equal(model.logits(run(model)), plain.logits(expected))


@pytest.mark.parametrize("kind", HEADS.values())
def test_clearing_brings_the_drafter_back(kind: type[SteeringHead]) -> None:
    """Catches a prompt that is read under the vector of another request."""
    model, steering = steered(kind)
    before = run(model)
    steering.follow(vector())
    steering.clear()
    assert torch.equal(run(model), before)


def test_signals_may_differ_from_row_to_row() -> None:
    """What training needs: a row's result depends on its own signal only."""
    model, steering = steered(SteeringHead)
    vectors = torch.cat([vector(seed) for seed in range(len(TOKENS))])
    steering.set_signals(steering.head(vectors).transpose(0, 1))
    mixed = run(model)
    steering.follow(vectors[:1])
    torch.testing.assert_close(run(model)[0], mixed[0])
    steering.follow(vectors[-1:])
    assert not torch.allclose(run(model)[1], mixed[1])


def test_the_verifiers_part_is_the_same_linear_map() -> None:
    """Catches blocks of W_hml that meet the wrong tap, and a lost bias."""
    head = randomise(SteeringHead(shape_for(), dtype=torch.float64))
    projection = head.projection(torch.float64)
    states = [vector(seed) for seed in (3, 4, 5)]
    expected = head.mix(torch.cat(states, dim=-1))
    assert projection.taps == (1, 2, 3)
    assert projection.bias is not None
    parts = [projection.partial({index: state}) for index, state in enumerate(states)]
    torch.testing.assert_close(sum(parts, projection.bias), expected)


def test_an_untrained_vector_is_the_sum_of_the_states() -> None:
    """The published start: three identities and no bias."""
    head = SteeringHead(shape_for(), dtype=torch.float64)
    states = [vector(seed) for seed in (3, 4, 5)]
    torch.testing.assert_close(head.mix(torch.cat(states, dim=-1)), sum(states))


@pytest.mark.parametrize("kind", HEADS.values())
def test_every_parameter_of_a_head_can_be_trained(kind: type[SteeringHead]) -> None:
    """Catches a head whose gradient stops somewhere between the states and the residual stream."""
    model, steering = steered(kind)
    steering.head.requires_grad_(requires_grad=True)
    states = torch.cat([vector(seed) for seed in (3, 4, 5)], dim=-1)
    steering.set_signals(steering.head(steering.head.mix(states))[0])
    torch.autograd.backward(run(model).square().sum())
    for name, parameter in steering.head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_default_taps_are_the_published_ones() -> None:
    """Three below 32 layers is 29, as in the published commands; shallow models are refused."""
    assert default_taps(32) == (3, 16, 29)
    assert default_taps(30) == (3, 15, 27)
    assert default_taps(8) == (3, 4, 5)
    with pytest.raises(ValueError, match="7 layers has no default taps"):
        default_taps(7)
    verifier = replace(LLAMA2, num_layers=12, hidden_size=64)
    shape = steering_shape(verifier, LLAMA2)
    shape.check_verifier(verifier)
    shape.check_drafter(LLAMA2)
    assert shape.layers == (0, 1, 2)


def test_a_head_between_other_models_is_refused() -> None:
    """Catches a head that is loaded for the wrong pair."""
    shape = shape_for()
    with pytest.raises(ValueError, match="verifier hidden size 24, not 32"):
        shape.check_verifier(LLAMA2)
    with pytest.raises(ValueError, match="behind 3 verifier layers, but there are only 2"):
        shape.check_verifier(replace(LLAMA2, hidden_size=24, num_layers=2))
    with pytest.raises(ValueError, match="drafter hidden size 32, not 48"):
        shape.check_drafter(QWEN3)
    with pytest.raises(ValueError, match="drafter MLP size 44, not 45"):
        shape.check_drafter(replace(LLAMA2, intermediate_size=45))
    with pytest.raises(ValueError, match="drafter layer 2, but the layers are 0 to 1"):
        shape.check_drafter(replace(LLAMA2, num_layers=2))


@pytest.mark.parametrize("change", [{"taps": (0, 1, 2)}, {"taps": (2, 2, 3)}, {"layers": ()}])
def test_impossible_shapes_are_refused(change: dict[str, tuple[int, ...]]) -> None:
    """The embedding cannot be tapped, and a head without layers steers nothing."""
    with pytest.raises(ValueError, match="they must be"):
        replace(shape_for(), **change)  # type: ignore[arg-type]
