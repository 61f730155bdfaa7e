"""What neural drafters learn from: prompts of three kinds and the verifier's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.training.answers import AnswerFile
from drafters.training.batches import derived_generator
from drafters.training.capture import Transcript
from drafters.training.loop import TrainingData
from launch.bench.workloads import ChatTokenizer
from launch.data.copy_diversity import copy_diversity
from launch.data.python_functions import python_function_prompts
from launch.data.sharegpt import sharegpt_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How many prompts of which kind, how long, and how many of them validate."""

    num_sharegpt: int = 3_000
    """First turns of ShareGPT conversations."""
    num_copy_diverse: int = 1_000
    """CopyDiversity prompts: answers that copy."""
    num_python: int = 1_000
    """Functions of Python's standard library to complete."""
    max_prompt_tokens: int = 512
    """Longer ShareGPT and Python prompts are left out."""
    max_tokens: int = 192
    """Longest answer."""
    validation_share: float = 0.05
    """Share of the prompts that only validates."""
    seed: int = 0

    def __post_init__(self) -> None:
        kinds = (self.num_sharegpt, self.num_copy_diverse, self.num_python)
        if min(kinds) < 0 or sum(kinds) < 2:
            raise ValueError("at least two training prompts are needed, and no negative number.")
        for name in ("max_prompt_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0.0 < self.validation_share < 1.0:
            raise ValueError(
                f"validation_share must be between 0 and 1, not {self.validation_share}."
            )


def training_prompts(config: DataConfig, tokenizer: ChatTokenizer) -> list[tuple[int, ...]]:
    """Distinct prompts as token ids of a chat.

    Raises:
        ValueError: the package with the ShareGPT prompts is missing or damaged.
    """
    copying = copy_diversity(config.num_copy_diverse, seed=config.seed)
    found = [tuple(tokenizer.chat(prompt.messages)) for prompt in copying]
    for read, number in (
        (sharegpt_prompts, config.num_sharegpt),
        (python_function_prompts, config.num_python),
    ):
        if number:
            prompts = read(
                tokenizer,
                num_prompts=number,
                max_prompt_tokens=config.max_prompt_tokens,
                seed=config.seed,
            )
            found += [prompt.token_ids for prompt in prompts]
    return list(dict.fromkeys(found))


def recorded(prompts: Sequence[tuple[int, ...]], answers: AnswerFile) -> list[Transcript]:
    """The prompts with their recorded answers; empty ones are left out."""
    return [
        Transcript(prompt_ids=prompt_ids, output_ids=output_ids)
        for prompt_ids in prompts
        if (output_ids := answers.get(prompt_ids))
    ]


def split(transcripts: Sequence[Transcript], config: DataConfig) -> TrainingData:
    """Training and validation transcripts, by prompt; raises ``ValueError`` if one is empty."""
    order = torch.randperm(
        len(transcripts), generator=derived_generator(config.seed, "validation")
    ).tolist()
    count = max(1, round(len(order) * config.validation_share))
    if count >= len(order):
        raise ValueError(f"{len(order)} transcripts are too few to train and validate: give more.")
    return TrainingData(
        training=[transcripts[index] for index in sorted(order[count:])],
        validation=[transcripts[index] for index in sorted(order[:count])],
    )


def token_counts(transcripts: Sequence[Transcript], vocab_size: int) -> Tensor:
    """[V] int64: how often each token was generated."""
    tokens = torch.tensor([token for entry in transcripts for token in entry.output_ids])
    return torch.bincount(tokens, minlength=vocab_size)
