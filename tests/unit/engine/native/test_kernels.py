"""Native kernels: the reference's numbers, and a row's same bits in every block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.attention.masked import MaskedAttention
from engine.block import SequenceRows, build_block
from engine.candidates import TokenTree, chain, merge_candidates
from engine.kv_cache import Commit, KVCache, KVShape
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.native import native_available, nativize
from engine.native.build import NativeBuildError, build_library
from engine.step_context import BlockContext
from tests.lossless.test_greedy import CONFIG
from tests.support.engines import random_decoder

pytestmark = pytest.mark.skipif(
    not native_available(), reason="the native kernels cannot be built here"
)

LLAMA = replace(CONFIG, hidden_size=96, head_dim=32, intermediate_size=72, vocab_size=203)
QWEN3 = replace(LLAMA, architecture="qwen3", num_heads=4, num_kv_heads=2, hidden_size=64)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
"""Relative to the largest value: fp32 sums in another order; bf16 also rounds in between."""


def native_model(config: ModelConfig, dtype: torch.dtype) -> Decoder:
    """A random model with native kernels."""
    model = random_decoder(config, dtype=dtype)
    nativize(model)
    return model


def filled_cache(config: ModelConfig, dtype: torch.dtype) -> KVCache:
    """Three slots of noise."""
    shape = KVShape(
        layer_indices=tuple(range(config.num_layers)),
        num_slots=3,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_length=128,
        max_rows=80,
    )
    kv = KVCache(shape, dtype=dtype)
    generator = torch.Generator().manual_seed(4)
    for cache in (kv.keys, kv.values):
        cache.copy_(torch.randn(cache.shape, generator=generator))
    return kv


def run(model: Decoder, kv: KVCache, rows: list[SequenceRows]) -> Tensor:
    """[R, H + 3]: hidden states and top values of every row, as exact doubles."""
    block = build_block(rows)
    with torch.inference_mode():
        hidden = model(block.token_ids, BlockContext(block, kv, MaskedAttention))
        top = model.top(hidden)
    heads = torch.stack([top.values.double(), top.ids.double(), top.runner_up.double()], dim=1)
    return torch.cat([hidden.double(), heads], dim=1)


def mixed_rows() -> list[SequenceRows]:
    """A chunk behind nothing, a trie and a chain behind prefixes of odd lengths."""
    trie = merge_candidates(7, [(1, 2, 3), (1, 4), (5, 6, 8, 9)], 99)
    return [
        SequenceRows(0, 0, chain(range(20, 31)), wants_all=True),
        SequenceRows(1, 45, trie, wants_all=True),
        SequenceRows(2, 17, chain([3, 4]), wants_all=True),
    ]


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_native_pass_equals_the_torch_pass(config: ModelConfig, dtype: torch.dtype) -> None:
    """Catches a wrong rotary half, head grouping, mask, norm or packing."""
    expected = run(random_decoder(config, dtype=dtype), filled_cache(config, dtype), mixed_rows())
    found = run(native_model(config, dtype), filled_cache(config, dtype), mixed_rows())
    scale = expected[:, :-3].abs().max()
    torch.testing.assert_close(
        found[:, :-3] / scale, expected[:, :-3] / scale, atol=TOLERANCES[dtype], rtol=0
    )


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_row_has_the_same_bits_in_every_block(dtype: torch.dtype) -> None:
    """Catches any order of sums that depends on the number of rows: strict mode rests on this."""
    model = native_model(LLAMA, dtype)
    for count in [*range(1, 20), 31, 32, 33, 47, 70]:
        tree = TokenTree(tuple(range(count)), (-1, *[0] * (count - 1)))
        together = run(
            model, filled_cache(LLAMA, dtype), [SequenceRows(1, 37, tree, wants_all=True)]
        )
        for row in {0, count // 2, count - 1}:
            nodes = TokenTree((0, row), (-1, 0)) if row else TokenTree((0,), (-1,))
            pair = run(
                model, filled_cache(LLAMA, dtype), [SequenceRows(1, 37, nodes, wants_all=True)]
            )
            assert torch.equal(together[row], pair[-1]), (count, row)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_moving_the_committed_boundary_changes_no_bit(dtype: torch.dtype) -> None:
    """A token decoded alone after commits, and the same token deep in a draft."""
    model, tokens = native_model(LLAMA, dtype), [5, 9, 2, 2, 7, 11, 3, 8, 1]
    whole = run(
        model, filled_cache(LLAMA, dtype), [SequenceRows(0, 13, chain(tokens), wants_all=True)]
    )
    kv = filled_cache(LLAMA, dtype)
    for index, token in enumerate(tokens):
        alone = run(model, kv, [SequenceRows(0, 13 + index, chain([token]), wants_all=True)])
        assert torch.equal(alone[0], whole[index])
        kv.commit([Commit(0, 13 + index, (0,))])


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    """Work is divided by columns and rows, never inside a sum."""
    model, results = native_model(LLAMA, dtype), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(model, filled_cache(LLAMA, dtype), mixed_rows()))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("threads", [1, 2])
def test_logits_come_out_for_the_wanted_rows(dtype: torch.dtype, threads: int) -> None:
    """Beside an unchanged arg-max; the last block of columns is not whole (203 ids)."""
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(70, LLAMA.hidden_size, generator=generator).to(dtype)
    wanted = [0, 3, 64, 69]
    model = native_model(LLAMA, dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        top, logits = model.top_and_logits(hidden, wanted)
        plain = model.top(hidden)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(top, plain, strict=True))
    assert torch.equal(logits.amax(-1), top.values[wanted])
    assert torch.equal(logits.argmax(-1), top.ids[wanted])
    expected = random_decoder(LLAMA, dtype=dtype).logits(hidden[wanted])
    scale = expected.abs().max()
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(logits / scale, expected / scale, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    """All logits equal: the first id wins, and the runner-up shows the tie."""
    model = random_decoder(LLAMA, dtype=dtype)
    assert model.head is not None
    for parameter in model.head.parameters():
        parameter.data.fill_(0.5)
    nativize(model)
    top = model.top(torch.ones(3, LLAMA.hidden_size, dtype=dtype))
    assert top.ids.tolist() == [0, 0, 0]
    assert torch.equal(top.values, top.runner_up)


def test_a_missing_compiler_is_one_clear_error(tmp_path: Path) -> None:
    """The engine then falls back to packed layers and says why."""
    with pytest.raises(NativeBuildError, match="no-such-compiler"):
        build_library(tmp_path, compiler="no-such-compiler")
