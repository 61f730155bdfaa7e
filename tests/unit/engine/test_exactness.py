"""The row-invariance self-test finds unsafe row counts, and padding goes to the next safe one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from engine.attention.rowwise import RowwiseAttention
from engine.exactness import RowPadding, find_row_padding
from engine.kv_cache import KVCache, KVShape
from engine.models.decoder import Decoder
from engine.native import native_available, nativize
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG
from tests.support.engines import random_decoder

NATIVE_CONFIG = replace(CONFIG, hidden_size=96, head_dim=32, intermediate_size=64)
"""Sizes that are multiples of any vector width."""

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8)


def cache(model: Decoder, num_kv_heads: int) -> KVCache:
    """An unused cache for the self-test."""
    shape = KVShape(
        layer_indices=model.layer_indices,
        num_slots=1,
        num_kv_heads=num_kv_heads,
        head_dim=model.config.head_dim,
        max_length=64,
        max_rows=16,
    )
    return KVCache(shape, dtype=model.dtype)


class Fussy(nn.Module):
    """A linear layer whose kernel changes its last bits at some row counts, as real ones do."""

    def __init__(self, inner: nn.Module, bad_counts: set[int]) -> None:
        super().__init__()
        self.inner, self.bad_counts = inner, bad_counts

    def forward(self, features: Tensor) -> Tensor:
        """Twice the work at bad counts, rounded differently."""
        rows = torch.stack([self.inner(row[None])[0] for row in features])
        return torch.nextafter(rows, rows + 1) if len(features) in self.bad_counts else rows


def fussy_model(bad_counts: set[int]) -> Decoder:
    """A model whose first MLP is fussy, every other linear layer being computed row by row."""
    model = random_decoder(CONFIG, dtype=torch.float32)
    for index in model.layer_indices:
        for name in ("attention.qkv", "attention.o", "mlp.gate_up"):
            _replace(model, f"layers.{index}.{name}", RowByRow)
        _replace(model, f"layers.{index}.mlp.down", lambda inner: Fussy(inner, bad_counts))
    _replace(model, "head", RowByRow)
    return model


def _replace(model: Decoder, name: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    model.set_submodule(name, wrap(model.get_submodule(name)))


class RowByRow(nn.Module):
    """Row-invariant by construction."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.in_features, self.out_features = inner.in_features, inner.out_features

    def forward(self, features: Tensor) -> Tensor:
        """Each row alone."""
        return torch.cat([self.inner(row[None]) for row in features])


def test_unsafe_row_counts_are_found_and_left_out() -> None:
    """Counts 3 and 6 round differently from plain decoding, so blocks of 3 are run as 4 rows."""
    model = fussy_model({3, 6})
    padding = find_row_padding(
        model, cache(model, 3), Mesh.single(), RowwiseAttention, row_counts=COUNTS
    )
    assert padding.safe_rows == (1, 2, 4, 5, 7, 8)
    assert [padding.rows_for(rows) for rows in (1, 2, 3, 6, 8, 9)] == [1, 2, 4, 7, 8, 9]


def test_plain_decoding_is_padded_when_a_single_row_is_unsafe() -> None:
    """One-row matrices often take a kernel of their own."""
    model = fussy_model({1})
    padding = find_row_padding(
        model, cache(model, 3), Mesh.single(), RowwiseAttention, row_counts=COUNTS
    )
    assert padding.rows_for(1) == 2


def test_safe_kernels_need_no_padding() -> None:
    """Nothing unsafe: no list to search at every step."""
    assert RowPadding().rows_for(17) == 17


@pytest.mark.skipif(not native_available(), reason="the native kernels cannot be built here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_native_kernels_need_no_padding(dtype: torch.dtype) -> None:
    """Row-invariant by construction; this is the test that start-up runs."""
    model = random_decoder(NATIVE_CONFIG, dtype=dtype)
    kv = cache(model, NATIVE_CONFIG.num_kv_heads)
    nativize(model)
    padding = find_row_padding(model, kv, Mesh.single(), RowwiseAttention, row_counts=COUNTS)
    assert padding == RowPadding()
