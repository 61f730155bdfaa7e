"""Configurations: every wrong value is one sentence that names the field and what is allowed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.methods import METHODS
from engine.speculation import SpeculationConfig, parse_speculation, speculation

CONFIG = EngineConfig(model="some/model")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("copy_match_length", 0, "1 to 64"),
        ("copy_match_length", "3", "1 to 64"),
        ("copy_match_length", True, "1 to 64"),
        ("copy_match_length", 2.5, "1 to 64"),
        ("copy_max_candidates", 65, "1 to 64"),
        ("copy_max_tokens", -1, "1 to 256"),
        ("num_speculative_tokens", None, "1 to 64"),
        ("probe", 7, "a text"),
        ("probe", "", "a text"),
        ("probe_threshold", 1.01, "0 to 1"),
        ("probe_threshold", "0.5", "0 to 1"),
        ("probe_threshold", False, "0 to 1"),
        ("row_budget", 0, "'auto', 'full' or an integer from 1"),
        ("row_budget", "some", "'auto', 'full' or an integer from 1"),
        ("drafter", "big", "none, eagle3, small_model, steered"),
        ("model", 3, "a text"),
        ("drafter", ["none"], "none, eagle3, small_model, steered"),
    ],
)
def test_impossible_speculation_value_names_key_and_what_is_allowed(
    key: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match=rf"'{key}' must be .*{re.escape(allowed)}") as caught:
        speculation("switch_sd", **{key: value})
    assert str(caught.value).count("\n") == 0


def test_unknown_key_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no key 'kappa'; its keys are method, drafter"):
        parse_speculation('{"kappa": 3}')


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_defaults_that_are_allowed(method: str) -> None:
    assert speculation(method).method == method


def test_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'method' must be one of vanilla, prompt_lookup"):
        parse_speculation('{"method": "magic"}')


def test_a_neural_method_is_the_drafter_of_its_name() -> None:
    assert speculation("eagle3").drafter == "eagle3"
    assert speculation("switch_sd", drafter="steered").drafter_key.drafter == "steered"
    with pytest.raises(ValueError, match="method 'eagle3' is the drafter of that name"):
        speculation("eagle3", drafter="steered")


def test_a_method_without_a_neural_drafter_refuses_one() -> None:
    with pytest.raises(ValueError, match="method 'prompt_lookup' has no neural drafter"):
        speculation("prompt_lookup", drafter="eagle3")


def test_drafter_weights_without_a_drafter_are_refused() -> None:
    with pytest.raises(ValueError, match="'model' names a neural drafter's weights"):
        speculation("switch_sd", model="some/drafter")


@pytest.mark.parametrize("text", ["{", "3", "[]", '"switch_sd"', "null"])
def test_only_a_json_object_configures_speculation(text: str) -> None:
    with pytest.raises(ValueError, match="must be a JSON object"):
        parse_speculation(text)


def test_keys_left_out_take_the_named_methods_own_defaults() -> None:
    """A key shared by methods must not carry SwitchSD's default into CopySpec."""
    assert parse_speculation('{"method": "copy_spec"}').copy_match_length == 3
    assert parse_speculation('{"method": "copy_spec"}').copy_max_tokens == 10
    assert parse_speculation('{"method": "prompt_lookup"}').num_speculative_tokens == 10
    assert parse_speculation("{}") == SpeculationConfig()
    base = speculation("copy_spec", copy_match_length=7)
    changed = parse_speculation('{"copy_max_tokens": 4}', base=base)
    assert changed == speculation("copy_spec", copy_match_length=7, copy_max_tokens=4)
    assert parse_speculation('{"method": "copy_spec"}', base=base).copy_match_length == 3


def test_a_threshold_of_zero_needs_no_probe() -> None:
    assert speculation("switch_sd").reads_probe
    assert not speculation("switch_sd", probe_threshold=0).reads_probe
    assert not speculation("copy_spec").reads_probe


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("model", " ", "--model"),
        ("dtype", "int8", "--dtype must be one of bfloat16, float32, float64"),
        ("tensor_parallel_size", 0, "--tensor-parallel-size must be an integer from 1"),
        ("pipeline_parallel_size", -2, "--pipeline-parallel-size must be an integer from 1"),
        ("max_model_len", 1, "--max-model-len must be an integer from 2"),
        ("max_num_seqs", 0, "--max-num-seqs must be an integer from 1"),
        ("quantization", "fp8", "--quantization 'fp8' is not available yet"),
        ("exactness", "exact", "--exactness must be one of strict, fast"),
        ("num_threads", 0, "--num-threads must be an integer from 1"),
        ("kernels", "cuda", "--kernels must be one of auto, native, packed, torch"),
    ],
)
def test_impossible_engine_value_names_its_flag(field: str, value: Any, flag: str) -> None:
    with pytest.raises(ValueError, match=re.escape(flag)) as caught:
        replace(CONFIG, **{field: value})
    assert str(caught.value).count("\n") == 0


def test_cores_are_divided_among_ranks_unless_threads_are_given() -> None:
    assert CONFIG.threads_per_rank(8) == 8
    assert replace(CONFIG, tensor_parallel_size=2, pipeline_parallel_size=2).num_ranks == 4
    assert replace(CONFIG, tensor_parallel_size=3).threads_per_rank(8) == 2
    assert replace(CONFIG, tensor_parallel_size=3).threads_per_rank(2) == 1
    assert replace(CONFIG, tensor_parallel_size=3, num_threads=5).threads_per_rank(2) == 5


def test_trees_of_other_depths_are_other_drafters_chains_share_one() -> None:
    short, long = ({"num_speculative_tokens": count} for count in (3, 6))
    assert speculation("eagle3", **short).drafter_key == speculation("eagle3", **long).drafter_key
    tree = {"draft_tree_top_k": 4}
    keys = [speculation("eagle3", **tree, **depth).drafter_key for depth in (short, long)]
    assert keys[0] != keys[1]
