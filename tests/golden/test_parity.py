"""Random tiny models give the logits of transformers.

Transformers computes norms and rotary angles in fp32 even for an fp64 model, which would hide
errors below 1e-7: those two leaves are replaced by fp64 versions here, so that everything else
(slices, head order, residuals, scaling) is compared to 1e-10. The angles' frequencies are compared
on their own.
"""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from engine.models.config import ModelConfig, RopeScaling
from engine.models.layers import inverse_frequencies
from engine.weights import read_model_config
from tests.support.causal import CausalContext
from tests.support.tiny import LLAMA2, LLAMA33, QWEN3, SMOLLM, load_decoder, write_checkpoint

TOKENS = torch.arange(3, 250, 5)

CONFIGS = {
    "llama2": LLAMA2,
    "llama2_tied": replace(LLAMA2, tie_word_embeddings=True),
    "llama2_linear": replace(LLAMA2, rope_scaling=RopeScaling(kind="linear", factor=4.0)),
    "llama33": LLAMA33,
    "llama33_tied": replace(LLAMA33, tie_word_embeddings=True),
    "smollm": SMOLLM,
    "qwen3": QWEN3,
    "qwen3_tied": replace(QWEN3, tie_word_embeddings=True),
}


class Fp64Rotary(nn.Module):
    """Stands in for the rotary module of transformers, which computes in fp32."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        del hidden
        half = position_ids[..., None].double() * self.frequencies
        angles = torch.cat((half, half), dim=-1)
        return angles.cos(), angles.sin()


def fp64_norm(self: Any, hidden: Tensor) -> Tensor:
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    normed: Tensor = self.weight * hidden * scale
    return normed


def load_reference(directory: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa")


def fp64_reference(directory: Path, config: ModelConfig) -> Any:
    model = load_reference(directory, torch.float64)
    frequencies = inverse_frequencies(
        config.head_dim, config.rope_theta, config.rope_scaling, torch.float64
    )
    model.model.rotary_emb = Fp64Rotary(frequencies)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(fp64_norm, module)
    return model


@pytest.fixture(params=CONFIGS, scope="module")
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelConfig, Path]:
    config = CONFIGS[request.param]
    return config, write_checkpoint(tmp_path_factory.mktemp(request.param), config)


def test_logits_equal_transformers_in_fp64(case: tuple[ModelConfig, Path]) -> None:
    config, directory = case
    decoder = load_decoder(directory, config, dtype=torch.float64)
    logits = decoder.logits(decoder(TOKENS, CausalContext(len(TOKENS))))
    with torch.inference_mode():
        expected = fp64_reference(directory, config)(TOKENS.unsqueeze(0)).logits[0]
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_tokens_of_untouched_transformers(
    case: tuple[ModelConfig, Path], dtype: torch.dtype
) -> None:
    """With nothing replaced in transformers; in bf16 only clear winners must agree."""
    config, directory = case
    decoder = load_decoder(directory, config, dtype=dtype)
    top = decoder.top(decoder(TOKENS, CausalContext(len(TOKENS))))
    with torch.inference_mode():
        expected = load_reference(directory, dtype)(TOKENS.unsqueeze(0)).logits[0].argmax(-1)
    clear = top.values - top.runner_up > (1e-3 if dtype == torch.float32 else 0.2)
    assert clear.sum() > len(TOKENS) // 2
    assert torch.equal(top.ids[clear], expected[clear])


def test_rotary_frequencies_equal_transformers(case: tuple[ModelConfig, Path]) -> None:
    config, directory = case
    ours = inverse_frequencies(
        config.head_dim, config.rope_theta, config.rope_scaling, torch.float32
    )
    theirs = load_reference(directory, torch.float32).model.rotary_emb.inv_freq
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_config_read_back_is_the_config_written(case: tuple[ModelConfig, Path]) -> None:
    config, directory = case
    assert read_model_config(directory) == config


def test_config_saved_by_transformers_is_read_alike(
    case: tuple[ModelConfig, Path], tmp_path: Path
) -> None:
    config, directory = case
    load_reference(directory, torch.float32).config.save_pretrained(tmp_path)
    assert read_model_config(tmp_path) == config
