"""The decoder's own promises: what observers see, ties, and the optional ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.interfaces import Site
from engine.models.decoder import Attention, Decoder
from engine.models.layers import Linear
from engine.models.registry import build_decoder, sharding_plan
from parallel.mesh import Mesh
from tests.support.causal import CausalContext
from tests.support.tiny import QWEN3, SMOLLM, load_decoder, write_checkpoint

TOKENS = torch.arange(40, 60)


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return load_decoder(write_checkpoint(tmp_path, SMOLLM), SMOLLM, dtype=torch.float64)


def test_observers_see_the_residual_stream_after_both_sub_blocks(decoder: Decoder) -> None:
    context = CausalContext(len(TOKENS))
    output = decoder(TOKENS, context)
    sites = [(layer, site) for layer in range(3) for site in (Site.ATTENTION, Site.MLP)]
    assert [(layer, site) for layer, site, _ in context.observed] == sites
    assert torch.equal(context.observed[-1][2], output)
    _, _, middle = context.observed[0]
    _, _, after = context.observed[1]
    torch.testing.assert_close(after, middle + decoder.get_submodule("layers.0.mlp")(middle))


def test_top_gives_the_lowest_id_of_a_tie_and_its_runner_up(decoder: Decoder) -> None:
    assert isinstance(decoder.head, Linear)
    weight = torch.zeros_like(decoder.head.weight)
    weight[7, 0] = weight[5, 0] = 2.0
    weight[200, 0] = 1.0
    decoder.head.weight = torch.nn.Parameter(weight, requires_grad=False)
    hidden = torch.zeros(2, SMOLLM.hidden_size, dtype=torch.float64)
    hidden[0, 0] = 1.0
    hidden[1, 0] = -1.0
    values, ids, runner_up = decoder.top(hidden)
    assert ids.tolist() == [5, 0]
    assert values[0] == runner_up[0] > 0
    assert values[1] == runner_up[1] == 0


def test_ids_are_global_on_later_vocabulary_shards() -> None:
    mesh = Mesh(tp_rank=1, tp_size=2, stage=0, num_stages=1)
    part = build_decoder(SMOLLM, mesh=mesh, dtype=torch.float32, max_model_len=8)
    assert (
        part.vocab_start == sharding_plan(SMOLLM, tp_rank=0, tp_size=2).shard("head.weight").length
    )


def test_a_decoder_on_the_meta_device_has_real_rotary_tables_and_local_heads() -> None:
    mesh = Mesh(tp_rank=0, tp_size=2, stage=1, num_stages=2)
    part = build_decoder(SMOLLM, mesh=mesh, dtype=torch.float32, max_model_len=8)
    attention = part.get_submodule("layers.2.attention")
    assert isinstance(attention, Attention)
    assert part.layer_indices == (2,)
    assert part.embed is None
    assert (attention.num_heads, attention.num_kv_heads) == (6, 2)
    assert all(parameter.is_meta for parameter in part.parameters())
    assert attention.rotary.cos_SD.shape == (8, 4)
    assert not attention.rotary.cos_SD.is_meta


def test_only_qwen3_normalises_heads() -> None:
    def names(decoder: Decoder) -> set[str]:
        return {name.rsplit(".", 2)[1] for name, _ in decoder.named_parameters()}

    single = Mesh.single()
    build = [
        build_decoder(config, mesh=single, dtype=torch.float32, max_model_len=8)
        for config in (SMOLLM, QWEN3)
    ]
    assert names(build[1]) - names(build[0]) == {"q_norm", "k_norm"}
