"""The attention backends agree with the full-mask oracle; row-wise attention bit for bit."""

from __future__ import annotations

import pytest
import torch

from engine.attention.masked import MaskedAttention
from engine.attention.merge import merge_attention_states
from engine.attention.merged import MergedAttention
from engine.attention.rowwise import RowwiseAttention
from engine.block import Block, SequenceRows, build_block
from engine.candidates import TokenTree, chain, merge_candidates
from engine.kv_cache import KVCache, KVShape

HEADS, KV_HEADS, DIM, ROWS = 6, 2, 16, 24
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""fp64 and fp32: rounding of sums; bf16: a few units in the last place of values around one."""


def random_kv(dtype: torch.dtype) -> KVCache:
    """A cache full of noise: what a backend must not read shows in its output."""
    shape = KVShape(
        layer_indices=(4,),
        num_slots=3,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        max_length=64,
        max_rows=ROWS,
    )
    kv = KVCache(shape, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for tensor in (kv.keys, kv.values, kv.scratch_keys, kv.scratch_values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return kv


def mixed_block() -> Block:
    """A fresh prompt (empty prefix), a trie, a plain row, and padding."""
    trie = merge_candidates(7, [(1, 2, 3), (1, 4), (5,)], 99)
    return build_block(
        [
            SequenceRows(0, 0, chain([1, 2, 3, 4]), wants_all=False),
            SequenceRows(1, 33, trie, wants_all=True),
            SequenceRows(2, 9, chain([3]), wants_all=True),
        ],
        padded_rows=14,
    )


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("backend", [MergedAttention, RowwiseAttention])
def test_backend_equals_the_full_mask_oracle(backend: type, dtype: torch.dtype) -> None:
    """Catches a wrong prefix length, a leaked sibling and an empty prefix."""
    kv, block = random_kv(dtype), mixed_block()
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(14, HEADS, DIM, generator=generator).to(dtype)
    expected = MaskedAttention(block, kv)(0, query)[: block.num_rows]
    found = backend(block, kv)(0, query)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(
        found[: block.num_rows], expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype]
    )


def test_rowwise_attention_has_the_bits_of_the_row_alone() -> None:
    """A row in a block, and the same row after its ancestors were committed, to the last bit."""
    kv = random_kv(torch.bfloat16)
    tree = TokenTree((0, 1, 2), (-1, 0, 1))
    block = build_block([SequenceRows(1, 20, tree, wants_all=True)])
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(3, HEADS, DIM, generator=generator).to(torch.bfloat16)
    together = RowwiseAttention(block, kv)(0, query)
    kv.keys[:, 1, :, 20:22] = kv.scratch_keys[:, :2].transpose(1, 2)
    kv.values[:, 1, :, 20:22] = kv.scratch_values[:, :2].transpose(1, 2)
    kv.scratch_keys[:, 0], kv.scratch_values[:, 0] = kv.scratch_keys[:, 2], kv.scratch_values[:, 2]
    alone = build_block([SequenceRows(1, 22, chain([2]), wants_all=True)])
    assert torch.equal(RowwiseAttention(alone, kv)(0, query[2:]), together[2:])


def test_merge_equals_attention_over_all_keys() -> None:
    """The identity that the split rests on."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 9, generator=generator, dtype=torch.float64) * 5
    values = torch.randn(9, DIM, generator=generator, dtype=torch.float64)
    parts = [
        (part.softmax(-1) @ values[columns], part.logsumexp(-1))
        for columns in (slice(0, 6), slice(6, 9))
        for part in [scores[:, columns]]
    ]
    merged = merge_attention_states(*parts[0], *parts[1])
    torch.testing.assert_close(merged, scores.softmax(-1) @ values, atol=1e-14, rtol=1e-14)
