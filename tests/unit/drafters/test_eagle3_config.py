"""EAGLE-3 configurations: three layouts, one meaning; what does not fit is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drafters.eagle3_config import Eagle3Config, read_eagle3_config, write_eagle3_config
from engine.models.config import RopeScaling
from tests.support.tiny import LLAMA2

VERIFIER = replace(LLAMA2, num_layers=36, hidden_size=64, vocab_size=500)
IDS = "eagle_aux_hidden_state_layer_ids"
LAYER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 500,
}
RAW = {"architectures": ["LlamaForCausalLM"], **LAYER, "draft_vocab_size": 100}
SPECFORGE = {**RAW, "architectures": ["LlamaForCausalLMEagle3"]}
SPECULATORS = {"transformer_layer_config": LAYER, "draft_vocab_size": 100}
VLLM = {**RAW, "architectures": ["Eagle3LlamaForCausalLM"]}


def read(directory: Path, fields: object) -> Eagle3Config:
    (directory / "config.json").write_text(json.dumps(fields))
    return read_eagle3_config(directory, VERIFIER)


@pytest.mark.parametrize(
    ("fields", "taps"),
    [
        (RAW, (2, 18, 33)),
        (SPECFORGE, (2, 18, 33)),
        ({**SPECFORGE, "eagle_config": {IDS: [0, 12, 35]}}, (1, 13, 36)),
        ({**RAW, "eagle_config": {IDS: [1, 17, 32]}}, (2, 18, 33)),
        ({**SPECULATORS, IDS: None}, (2, 18, 33)),
        ({**SPECULATORS, IDS: [3, 18, 36]}, (3, 18, 36)),
        ({**VLLM, IDS: [3, 18, 36]}, (3, 18, 36)),
    ],
)
def test_taps_are_hidden_state_indices_in_every_layout(
    fields: dict[str, Any], taps: tuple[int, ...], tmp_path: Path
) -> None:
    """Catches ids that keep their project's base: the head would read a neighbouring layer."""
    assert read(tmp_path, fields).taps == taps


@pytest.mark.parametrize(
    ("fields", "before_logits", "feedback"),
    [
        (SPECFORGE, True, False),
        ({**SPECFORGE, "norm_output": True}, True, False),
        ({**SPECFORGE, "norm_output": False}, False, False),
        (SPECULATORS, True, False),
        ({**SPECULATORS, "norm_output": False}, True, False),
        ({**SPECULATORS, "norm_output": True}, True, True),
        ({**VLLM, "norm_output": True}, True, True),
    ],
)
def test_norm_output_means_what_its_project_means(
    fields: dict[str, Any], *, before_logits: bool, feedback: bool, tmp_path: Path
) -> None:
    config = read(tmp_path, fields)
    assert (config.norm_before_logits, config.norm_feedback) == (before_logits, feedback)


def test_a_raw_head_without_rope_fields_has_theta_10000(tmp_path: Path) -> None:
    """Not the verifier's theta, not its scaling; a trained length of 2048."""
    layer = read(tmp_path, RAW).layer
    assert (layer.rope_theta, layer.rope_scaling) == (10000.0, None)
    assert layer.max_position_embeddings == 2048
    assert layer.head_dim == 16


def test_the_heads_own_rope_head_dim_and_switches_are_read(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0}
    layer = {**LAYER, "rope_theta": 1e6, "rope_scaling": rope, "head_dim": 32}
    switches = {"norm_before_residual": True, "fc_norm": True}
    config = read(tmp_path, {**SPECULATORS, "transformer_layer_config": layer, **switches})
    assert config.layer.rope_theta == 1e6
    assert config.layer.rope_scaling == RopeScaling(kind="linear", factor=4.0)
    assert config.layer.head_dim == 32
    assert config.norm_before_residual
    assert config.fc_norm


def test_a_head_narrower_than_its_verifier_names_the_verifiers_width(tmp_path: Path) -> None:
    config = read(tmp_path, {**RAW, "hidden_size": 32, "target_hidden_size": 64})
    assert (config.layer.hidden_size, config.target_hidden_size) == (32, 64)


def test_a_head_without_draft_vocabulary_predicts_every_token(tmp_path: Path) -> None:
    fields = {name: value for name, value in RAW.items() if name != "draft_vocab_size"}
    assert read(tmp_path, fields).draft_vocab_size == 500


LLAMA3_ROPE = RopeScaling(
    kind="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config,
        lambda config: replace(config, taps=(1, 5, 36), fc_norm=True, norm_before_residual=True),
        lambda config: replace(config, norm_feedback=True, norm_before_logits=False),
        lambda config: replace(config, layer=replace(config.layer, rope_scaling=LLAMA3_ROPE)),
        lambda config: replace(
            config,
            layer=replace(config.layer, rope_scaling=RopeScaling(kind="linear", factor=2.0)),
        ),
    ],
    ids=["plain", "taps", "norms", "llama3", "linear"],
)
def test_what_is_written_is_read_again(
    change: Callable[[Eagle3Config], Eagle3Config], tmp_path: Path
) -> None:
    config = change(read(tmp_path, RAW))
    assert read(tmp_path, write_eagle3_config(config)) == config


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**RAW, "architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is no"),
        (without(RAW, "architectures"), "architecture none is no EAGLE-3 head: allowed are Llama"),
        ({**SPECULATORS, "transformer_layer_config": 3}, "transformer_layer_config must be an"),
        ({**SPECULATORS, "norm_before_fc": True}, "norm_before_fc=True is not supported .* False"),
        ({**RAW, "num_hidden_layers": 2}, "num_hidden_layers=2 is not supported .* allowed is 1"),
        ({**RAW, "eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state=False"),
        (
            {**SPECULATORS, "transformer_layer_config": {**LAYER, "model_type": "qwen3"}},
            "model_type=qwen3 is not supported in an EAGLE-3 head: allowed is llama",
        ),
        ({**RAW, "attention_bias": True}, "attention_bias=True is not supported"),
        ({**RAW, "rope_scaling": {"rope_type": "yarn"}}, "rope_type=yarn is not supported"),
        (without(RAW, "hidden_size"), "hidden_size must be a positive integer, not None"),
        ({**RAW, "draft_vocab_size": 501}, r"draft_vocab_size=501 is out of range: .* 1 to 500"),
        ({**RAW, "draft_vocab_size": "x"}, "draft_vocab_size must be a positive integer, not x"),
        ({**RAW, "vocab_size": 400}, "vocab_size is 400, but the verifier's is 500"),
        ({**RAW, "hidden_size": 32}, "target_hidden_size is 32, but the verifier's is 64"),
        ({**SPECULATORS, IDS: [1, 2, 37]}, r"\[1, 2, 37\], but the verifier has 36 layers"),
        ({**SPECULATORS, IDS: [0, 2, 3]}, r"\[0, 2, 3\]: allowed are different indices of 1"),
        ({**SPECULATORS, IDS: [2, 2, 3]}, r"\[2, 2, 3\]: allowed are different indices"),
        ({**SPECULATORS, IDS: ["a"]}, "layer_ids must be a list of integers, not"),
        ({**RAW, "fc_norm": "yes"}, "fc_norm must be true or false, not yes"),
    ],
)
def test_what_does_not_fit_is_one_sentence_with_the_file(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}") as caught:
        read(tmp_path, fields)
    assert str(caught.value).count("config.json") == 1
