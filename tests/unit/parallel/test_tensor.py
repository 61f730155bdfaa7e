"""Narrowing a model, without processes: the parts of all ranks joined are the whole."""

from __future__ import annotations

import torch
from torch import nn

from parallel.mesh import Mesh
from parallel.plan import Shard, ShardingPlan, ShardStyle
from parallel.slices import even_range
from parallel.tensor import (
    RowParallelLinear,
    VocabParallelEmbedding,
    apply_tensor_parallel,
    plain_name,
)


class Toy(nn.Module):
    """An embedding tied to its head, with an up and a down projection between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.up = nn.Linear(4, 5, bias=False)
        self.down = nn.Linear(5, 4, bias=False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def shard_toy(rank: int, size: int) -> Toy:
    torch.manual_seed(0)
    model = Toy()
    vocab, inner = even_range(7, rank, size), even_range(5, rank, size)
    plan = ShardingPlan(
        shards={
            "embed.weight": Shard(style=ShardStyle.VOCAB, runs=(vocab,)),
            "head.weight": Shard(style=ShardStyle.COLUMN, runs=(vocab,)),
            "up.weight": Shard(style=ShardStyle.COLUMN, runs=(inner,)),
            "down.weight": Shard(style=ShardStyle.ROW, runs=(inner,)),
        }
    )
    apply_tensor_parallel(model, plan, Mesh(tp_rank=rank, tp_size=size, stage=0, num_stages=1))
    return model


def test_the_parts_of_all_ranks_joined_are_the_whole() -> None:
    whole, parts = shard_toy(0, 1), [shard_toy(rank, 3) for rank in range(3)]
    named = [dict(part.named_parameters(remove_duplicate=False)) for part in parts]
    dims = {"embed.inner.weight": 0, "up.weight": 0, "down.inner.weight": 1, "head.weight": 0}
    assert set(named[0]) == set(dims)
    for name, dim in dims.items():
        joined = torch.cat([part[name] for part in named], dim=dim)
        assert torch.equal(joined, whole.get_parameter(plain_name(name)))


def test_a_tied_parameter_stays_tied() -> None:
    model = shard_toy(1, 2)
    assert isinstance(model.embed, VocabParallelEmbedding)
    assert model.embed.inner.weight is model.head.weight


def test_foreign_ids_embed_to_zero() -> None:
    """Mesh without a group: the sum over ranks is left out, so this rank's summand shows."""
    model = shard_toy(1, 2)
    rows = model.embed(torch.tensor([0, 3, 4, 6]))
    assert torch.equal(rows[:2], torch.zeros(2, 4))
    assert torch.equal(rows[2:], model.head.weight[[0, 2]])


def test_row_parallel_linear_reports_local_inputs() -> None:
    model = shard_toy(0, 2)
    assert isinstance(model.down, RowParallelLinear)
    assert (model.down.in_features, model.down.out_features) == (5, 4)
    assert model.down.inner.weight.shape == (4, 3)


def test_one_rank_leaves_the_model_alone() -> None:
    assert isinstance(shard_toy(0, 1).down, nn.Linear)
