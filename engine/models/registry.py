"""From a config to this rank's part of a decoder: the architectures, and how they are split."""

from __future__ import annotations

import torch

from engine.models.config import Architecture, ModelConfig
from engine.models.decoder import Decoder
from parallel.mesh import Mesh
from parallel.pipeline import keep_stage
from parallel.plan import Shard, ShardingPlan, ShardStyle
from parallel.slices import even_range, head_ranges
from parallel.tensor import apply_tensor_parallel

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
}
"""The names that checkpoints use for the architectures we run."""

META = torch.device("meta")


def build_decoder(
    config: ModelConfig,
    *,
    mesh: Mesh,
    dtype: torch.dtype,
    max_model_len: int,
    device: torch.device = META,
) -> Decoder:
    """This rank's part of a decoder, with local shapes and (on the meta device) no memory.

    Raises:
        ValueError: the model cannot be split that way.
    """
    decoder = Decoder(config, max_model_len=max_model_len, dtype=dtype, device=device)
    shard_decoder(decoder, mesh)
    return decoder.eval()


def shard_decoder(decoder: Decoder, mesh: Mesh) -> None:
    """Cut a full decoder, real or meta, down to this rank's part; in place."""
    plan = sharding_plan(decoder.config, tp_rank=mesh.tp_rank, tp_size=mesh.tp_size)
    keep_stage(decoder, mesh)
    apply_tensor_parallel(decoder, plan, mesh)
    decoder.vocab_start = plan.shard("head.weight").runs[0].start


def sharding_plan(config: ModelConfig, *, tp_rank: int, tp_size: int) -> ShardingPlan:
    """What tensor-parallel rank ``tp_rank`` keeps of every parameter of the decoder.

    Raises:
        ValueError: the heads do not split that way.
    """
    queries, kvs = head_ranges(config.num_heads, config.num_kv_heads, tp_rank, tp_size)
    inner = even_range(config.intermediate_size, tp_rank, tp_size)
    vocab = even_range(config.vocab_size, tp_rank, tp_size)
    query_rows = _scale(queries, config.head_dim)
    kv_rows = _scale(kvs, config.head_dim)
    qkv = (
        query_rows,
        _shift(kv_rows, config.query_size),
        _shift(kv_rows, config.query_size + config.kv_size),
    )
    gate_up = (inner, _shift(inner, config.intermediate_size))
    return ShardingPlan(
        shards={
            "embed.weight": Shard(style=ShardStyle.VOCAB, runs=(vocab,)),
            "head.weight": Shard(style=ShardStyle.COLUMN, runs=(vocab,)),
            "layers.*.qkv.weight": Shard(style=ShardStyle.COLUMN, runs=qkv),
            "layers.*.o.weight": Shard(style=ShardStyle.ROW, runs=(query_rows,)),
            "layers.*.gate_up.weight": Shard(style=ShardStyle.COLUMN, runs=gate_up),
            "layers.*.down.weight": Shard(style=ShardStyle.ROW, runs=(inner,)),
            "*norm.weight": Shard(style=ShardStyle.REPLICATE),
        }
    )


def _scale(run: range, factor: int) -> range:
    return range(run.start * factor, run.stop * factor)


def _shift(run: range, offset: int) -> range:
    return range(run.start + offset, run.stop + offset)
