"""The leaf layers against formulas written out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.models.config import RopeScaling
from engine.models.layers import RMSNorm, Rotary, inverse_frequencies
from tests.support.tiny import LLAMA2

CPU = torch.device("cpu")


def test_rotary_turns_pairs_of_halves_by_position_times_frequency() -> None:
    rotary = Rotary(LLAMA2, max_model_len=50, dtype=torch.float64)
    heads = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = rotary(heads, torch.tensor([0, 49]))
    assert torch.equal(turned[0], heads[0])
    for i in range(4):
        angle = 49 * 10000.0 ** (-2 * i / 8)
        pair = torch.complex(heads[1, :, i], heads[1, :, i + 4])
        expected = pair * complex(math.cos(angle), math.sin(angle))
        torch.testing.assert_close(turned[1, :, i], expected.real, rtol=0, atol=1e-12)
        torch.testing.assert_close(turned[1, :, i + 4], expected.imag, rtol=0, atol=1e-12)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=8192)
    plain = inverse_frequencies(128, 500000.0, None, torch.float64)
    scaled = inverse_frequencies(128, 500000.0, scaling, torch.float64)
    wavelength = 2 * math.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192
    assert torch.equal(scaled[short], plain[short])
    assert torch.equal(scaled[long], plain[long] / 8)
    between = ~short & ~long
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_linear_scaling_divides_every_frequency() -> None:
    plain = inverse_frequencies(16, 10000.0, None, torch.float64)
    scaling = RopeScaling(kind="linear", factor=4.0)
    assert torch.equal(inverse_frequencies(16, 10000.0, scaling, torch.float64), plain / 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rms_norm_has_unit_mean_square(dtype: torch.dtype) -> None:
    norm = RMSNorm(64, 0.0, dtype=dtype, device=CPU)
    norm.weight.data.fill_(2.0)
    features = 300 * torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    normed = norm(features)
    assert normed.dtype == dtype
    torch.testing.assert_close(
        normed.double().square().mean(-1),
        torch.full((5,), 4.0, dtype=torch.float64),
        rtol={torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-14}[dtype],
        atol=0,
    )


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_attention_heads must be a multiple"):
        replace(LLAMA2, num_kv_heads=3)
    with pytest.raises(ValueError, match="head_dim=7 is odd"):
        replace(LLAMA2, head_dim=7)
