"""Reading ``config.json``: both spellings of rope, and refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.models.config import RopeScaling
from engine.weights.model_config import read_eos_token_ids, read_model_config
from tests.support.tiny import LLAMA2, LLAMA33, QWEN3, hf_config

LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}


def write(directory: Path, fields: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def test_the_older_spelling_of_rope_is_read_alike(tmp_path: Path) -> None:
    """As in the published Llama-3.3-70B-Instruct config."""
    fields = hf_config(LLAMA33)
    del fields["rope_parameters"]
    fields |= {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING}
    assert read_model_config(write(tmp_path, fields)) == LLAMA33


def test_the_oldest_spelling_calls_the_kind_type(tmp_path: Path) -> None:
    fields = hf_config(LLAMA2) | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    del fields["rope_parameters"]
    config = read_model_config(write(tmp_path, fields))
    assert config.rope_scaling == RopeScaling(kind="linear", factor=2.0)
    assert config.rope_theta == 10000.0


def test_absent_fields_take_hugging_faces_defaults(tmp_path: Path) -> None:
    fields = hf_config(LLAMA2)
    for name in ("rope_parameters", "num_key_value_heads", "head_dim", "tie_word_embeddings"):
        del fields[name]
    assert read_model_config(write(tmp_path, fields)) == LLAMA2


def test_a_null_rope_scaling_is_no_scaling(tmp_path: Path) -> None:
    fields = hf_config(QWEN3) | {"rope_scaling": None, "rope_theta": 1000000}
    del fields["rope_parameters"]
    assert read_model_config(write(tmp_path, fields)) == QWEN3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not .* LlamaForCausalLM"),
        ({"attention_bias": True}, "attention_bias=True is not supported"),
        ({"mlp_bias": True}, "mlp_bias=True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported: allowed is silu"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention.* allowed is full_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config=.*unquantised"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type=yarn .* default, linear, llama3"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "factor must be a positive number"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, not None"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not many"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple"),
    ],
)
def test_what_we_cannot_run_is_refused_by_file_and_field(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
        read_model_config(write(tmp_path, hf_config(LLAMA2) | change))


def test_a_config_without_architectures_goes_by_its_model_type(tmp_path: Path) -> None:
    fields = hf_config(QWEN3)
    del fields["architectures"]
    assert read_model_config(write(tmp_path, fields)).architecture == "qwen3"
    with pytest.raises(ValueError, match="model_type mamba is not supported"):
        read_model_config(write(tmp_path, fields | {"model_type": "mamba"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "must hold a JSON object, not a list"), ("{", "is not readable as JSON")],
)
def test_a_broken_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"config\.json {message}"):
        read_model_config(tmp_path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        read_model_config(tmp_path)


def test_end_tokens_of_both_files_are_joined_in_order(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": 2})
    assert read_eos_token_ids(tmp_path) == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_eos_token_ids(tmp_path) == (7, 2)
