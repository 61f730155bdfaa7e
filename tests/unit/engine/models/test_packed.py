"""Packed matrices against ``F.linear``, and the plain layers that stay where packing cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.models.decoder import Attention
from engine.models.layers import Linear
from engine.models.packed import PackedLinear, can_pack, pack_linears
from tests.support.causal import CausalContext
from tests.support.tiny import SMOLLM, load_decoder, write_checkpoint

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 67])
def test_packed_output_is_that_of_f_linear(dtype: torch.dtype, rows: int) -> None:
    if not can_pack(dtype):
        pytest.skip(f"this CPU or this build of PyTorch does not pack {dtype}")
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(37, 50, generator=generator).to(dtype)
    features = torch.randn(rows, 50, generator=generator).to(dtype)
    packed = PackedLinear(weight)
    assert (packed.in_features, packed.out_features) == (50, 37)
    expected = functional.linear(features.double(), weight.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(packed(features).double(), expected, rtol=1e-2, atol=tolerance)


def test_packing_a_decoder_changes_no_arg_max_and_no_embedding(tmp_path: Path) -> None:
    """The head is tied: its packed copy must leave the embedding's table alone."""
    decoder = load_decoder(write_checkpoint(tmp_path, SMOLLM), SMOLLM, dtype=torch.float32)
    tokens = torch.arange(20)
    before = decoder.logits(decoder(tokens, CausalContext(20)))
    count = pack_linears(decoder)
    assert count == (4 * SMOLLM.num_layers + 1 if can_pack(torch.float32) else 0)
    attention = decoder.get_submodule("layers.0.attention")
    assert isinstance(attention, Attention)
    assert attention.num_heads == SMOLLM.num_heads
    after = decoder.logits(decoder(tokens, CausalContext(20)))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)
    assert torch.equal(after.argmax(-1), before.argmax(-1))


@pytest.mark.parametrize(
    "linear",
    [
        Linear(4, 3, dtype=torch.float64, device=CPU),
        Linear(4, 3, dtype=torch.float32, device=torch.device("meta")),
    ],
)
def test_what_cannot_be_packed_stays(linear: Linear) -> None:
    holder = torch.nn.ModuleDict({"linear": linear})
    assert pack_linears(holder) == 0
    assert holder["linear"] is linear


def test_a_build_without_the_operators_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not can_pack(torch.float32)
