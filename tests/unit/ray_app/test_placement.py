"""What a gang asks of a cluster, and the sentence when the cluster is too small."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from ray_app.placement import Placement, check_capacity, placement_for


def _config(tp: int, pp: int) -> EngineConfig:
    return EngineConfig(model="m", tensor_parallel_size=tp, pipeline_parallel_size=pp)


def test_a_tensor_parallel_group_is_one_bundle() -> None:
    assert placement_for(_config(4, 2), "cuda") == Placement(
        bundle={"GPU": 4.0, "CPU": 4.0}, num_bundles=2
    )
    assert placement_for(_config(2, 1), "cpu") == Placement(bundle={"CPU": 2.0}, num_bundles=1)


def test_one_group_is_packed_and_stages_may_spread() -> None:
    assert placement_for(_config(4, 1), "cuda").strategy == "STRICT_PACK"
    assert placement_for(_config(4, 2), "cuda").strategy == "PACK"


def test_a_group_never_straddles_nodes() -> None:
    """Four GPUs on two nodes are enough GPUs, and still no place for a group of four."""
    placement = placement_for(_config(4, 1), "cuda")
    check_capacity(placement, [{"GPU": 4, "CPU": 8}])
    with pytest.raises(ValueError, match="need 4 GPUs and 4 CPUs on one node"):
        check_capacity(placement, [{"GPU": 2, "CPU": 8}, {"GPU": 2, "CPU": 8}])


def test_two_groups_may_share_a_node_or_not() -> None:
    placement = placement_for(_config(4, 2), "cuda")
    check_capacity(placement, [{"GPU": 8, "CPU": 8}])
    check_capacity(placement, [{"GPU": 4, "CPU": 8}, {"GPU": 5, "CPU": 8}])
    with pytest.raises(ValueError, match="2 times 4 GPUs and 4 CPUs"):
        check_capacity(placement, [{"GPU": 7, "CPU": 64}])


def test_the_sentence_names_what_is_asked_and_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"need 4 GPUs and 4 CPUs .* here are 0 GPUs and 2 CPUs"):
        check_capacity(placement_for(_config(4, 1), "cuda"), [{"CPU": 2}])
    with pytest.raises(ValueError, match="here are no nodes"):
        check_capacity(placement_for(_config(1, 1), "cpu"), [])
