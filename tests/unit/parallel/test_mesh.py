"""The grid of ranks, without processes."""

from __future__ import annotations

import pytest

from parallel.mesh import Mesh, build_mesh


def test_ranks_of_a_stage_are_neighbours_and_the_last_stage_coordinates() -> None:
    grid = [
        Mesh(tp_rank=tp_rank, tp_size=2, stage=stage, num_stages=3)
        for stage in range(3)
        for tp_rank in range(2)
    ]
    assert [mesh.rank for mesh in grid] == list(range(6))
    assert [mesh.rank for mesh in grid if mesh.is_coordinator] == [4]
    assert {mesh.coordinator_rank for mesh in grid} == {4}
    assert [mesh.is_first_stage for mesh in grid] == [True, True, False, False, False, False]
    assert [mesh.is_last_stage for mesh in grid] == [False, False, False, False, True, True]
    assert grid[0].owner_rank(1) == 2


def test_one_process_needs_no_group() -> None:
    mesh = build_mesh(1, 1)
    assert mesh == Mesh.single()
    assert mesh.is_first_stage
    assert mesh.is_last_stage
    assert mesh.is_coordinator
    assert mesh.world_size == 1


def test_a_grid_of_another_size_than_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 6 processes, but 1 were started"):
        build_mesh(2, 3)
