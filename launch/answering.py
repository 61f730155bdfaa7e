"""Which verifier answers prompts, for a training or a recording."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from launch.recipes import EngineFlags, engine_config


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringFlags:
    """Flags of every command that asks a verifier in one process."""

    recipe: str = "smollm2"
    """Named configuration of the verifier."""
    model: str | None = None
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: str | None = None
    """Precision in which the verifier answers; states are captured in float32."""
    num_threads: int | None = None
    """Threads; by default all cores."""
    max_tokens: int = 192
    """Longest answer in tokens."""


def answering_engine(flags: AnsweringFlags) -> EngineConfig:
    """One process; answers are drafted by prompt look-up, which changes nothing but their time.

    Raises:
        ValueError: an unknown recipe, or a value out of range; one sentence.
    """
    return engine_config(
        EngineFlags(
            recipe=flags.recipe,
            model=flags.model,
            dtype=flags.dtype,
            num_threads=flags.num_threads,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            speculative_config='{"method": "prompt_lookup"}',
        )
    )
