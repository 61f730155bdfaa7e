"""The table of patterns, and what a shard keeps of a tensor."""

from __future__ import annotations

import pytest
import torch

from parallel.plan import Shard, ShardingPlan, ShardStyle

FULL = torch.arange(24).view(6, 4)


def test_a_merged_weight_keeps_one_run_of_each_part() -> None:
    shard = Shard(style=ShardStyle.COLUMN, runs=(range(1, 2), range(4, 6)))
    assert torch.equal(shard.narrow(FULL), FULL[[1, 4, 5]])
    assert shard.length == 3


def test_row_style_keeps_columns_contiguously() -> None:
    local = Shard(style=ShardStyle.ROW, runs=(range(1, 3),)).narrow(FULL)
    assert torch.equal(local, FULL[:, 1:3])
    assert local.is_contiguous()


def test_replicated_parameters_stay_whole() -> None:
    assert Shard(style=ShardStyle.REPLICATE).narrow(FULL) is FULL


def test_meta_tensors_are_narrowed_without_memory() -> None:
    shard = Shard(style=ShardStyle.COLUMN, runs=(range(2),))
    local = shard.narrow(torch.empty(1 << 40, 8, device="meta"))
    assert local.shape == (2, 8)
    assert local.is_meta


def test_every_parameter_matches_exactly_one_pattern() -> None:
    shard = Shard(style=ShardStyle.REPLICATE)
    plan = ShardingPlan(shards={"layers.*.norm.weight": shard, "*.weight": shard})
    assert plan.shard("head.weight") is shard
    with pytest.raises(AssertionError, match="2 patterns"):
        plan.shard("layers.3.norm.weight")
    with pytest.raises(AssertionError, match="0 patterns"):
        plan.shard("head.bias")
