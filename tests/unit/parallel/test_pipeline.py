"""Cutting a model into stages."""

from __future__ import annotations

import pytest
from torch import nn

from parallel.mesh import Mesh
from parallel.pipeline import keep_stage, stage_layers, stage_of_layer


class Toy(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.embed: nn.Module | None = nn.Embedding(3, 2)
        self.layers = nn.ModuleDict({str(i): nn.Linear(2, 2) for i in range(num_layers)})
        self.norm: nn.Module | None = nn.LayerNorm(2)
        self.head: nn.Module | None = nn.Linear(2, 3)


def test_stages_hold_every_layer_once_under_its_global_name() -> None:
    kept: list[str] = []
    ends = []
    for stage in range(3):
        model = Toy(11)
        keep_stage(model, Mesh(tp_rank=0, tp_size=1, stage=stage, num_stages=3))
        kept += list(model.layers)
        ends.append((model.embed is not None, model.norm is not None, model.head is not None))
    assert kept == [str(index) for index in range(11)]
    assert ends == [(True, False, False), (False, False, False), (False, True, True)]


def test_a_stage_is_found_by_any_of_its_layers() -> None:
    for layer in range(11):
        assert layer in stage_layers(11, stage_of_layer(layer, 11, 4), 4)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"pipeline_parallel_size=4 .* 3 layers: allowed are 1 to 3"
    ):
        stage_layers(3, 0, 4)
