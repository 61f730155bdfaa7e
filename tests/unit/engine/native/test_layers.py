"""All layers in one native call: the same bits as one by one, cut where somebody looks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention.masked import MaskedAttention
from engine.block import build_block
from engine.interfaces import Site
from engine.native import native_available, nativize
from engine.step_context import BlockContext
from tests.support.engines import random_decoder
from tests.unit.engine.native.test_kernels import (
    LLAMA,
    TOLERANCES,
    filled_cache,
    mixed_rows,
    native_model,
)

pytestmark = pytest.mark.skipif(
    not native_available(), reason="the native kernels cannot be built here"
)

Observed = dict[tuple[int, Site], Tensor]


def forward(dtype: torch.dtype, layers: frozenset[int] | None) -> tuple[Tensor, Observed]:
    """Final hidden states, and what a tap on ``layers`` (None: on all) was shown."""
    shown: Observed = {}

    def tap(layer: int, site: Site, hidden: Tensor) -> None:
        shown[layer, site] = hidden

    block = build_block(mixed_rows())
    model, kv = native_model(LLAMA, dtype), filled_cache(LLAMA, dtype)
    with torch.inference_mode():
        context = BlockContext(block, kv, MaskedAttention, tap, layers)
        return model(block.token_ids, context), shown


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_fused_layers_have_the_bits_of_single_modules(dtype: torch.dtype) -> None:
    """The residual sums are rounded where PyTorch rounds them."""
    every, shown = forward(dtype, None)
    fused, nothing = forward(dtype, frozenset())
    assert torch.equal(every, fused)
    assert len(shown) == 2 * LLAMA.num_layers
    assert nothing == {}


@pytest.mark.parametrize("layer", range(LLAMA.num_layers))
def test_a_tapped_layer_is_shown_its_own_states(layer: int) -> None:
    """The probe's layer may be the first, a middle one or the last; states stay after the step."""
    every, all_shown = forward(torch.bfloat16, None)
    hidden, shown = forward(torch.bfloat16, frozenset({layer}))
    assert torch.equal(hidden, every)
    assert set(shown) == {(layer, Site.ATTENTION), (layer, Site.MLP)}
    for key, states in shown.items():
        assert torch.equal(states, all_shown[key])


@pytest.mark.parametrize("tied", [False, True])
def test_whole_logits_are_still_there(*, tied: bool) -> None:
    """Untied, the head's own weight was freed: logits come from the packed one."""
    config = replace(LLAMA, tie_word_embeddings=tied)
    hidden = torch.randn(4, config.hidden_size)
    plain, native = random_decoder(config, dtype=torch.float32), native_model(config, torch.float32)
    torch.testing.assert_close(native.logits(hidden), plain.logits(hidden))
    top = native.top(hidden)
    assert torch.equal(top.ids, plain.logits(hidden).argmax(-1))
    best_two = plain.logits(hidden).topk(2).values
    torch.testing.assert_close(top.values, best_two[:, 0])
    torch.testing.assert_close(top.runner_up, best_two[:, 1])


def test_a_tie_across_threads_goes_to_the_lowest_id() -> None:
    """Equal logits far apart in the vocabulary: other lanes, blocks and threads."""
    model = random_decoder(LLAMA, dtype=torch.float32)
    assert model.head is not None
    weight = next(model.head.parameters()).data
    weight.zero_()
    weight[[61, 30, 190]] = 1.0
    nativize(model)
    threads = torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        top = model.top(torch.ones(2, LLAMA.hidden_size))
        assert top.ids.tolist() == [30, 30]
        assert torch.equal(top.values, top.runner_up)
    torch.set_num_threads(threads)
