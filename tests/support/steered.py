"""Tiny steered drafters: a random head, on disk in our layout, and ways to break its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from drafters.steering import SteeringHead, SteeringShape
from drafters.steering_files import save_steering
from engine.copy_source import NO_COPIES
from engine.records import SequenceView
from tests.support.tiny import LLAMA2, write_checkpoint

SHAPE = SteeringShape(
    verifier_hidden_size=24,
    taps=(3, 4, 5),
    drafter_hidden_size=LLAMA2.hidden_size,
    drafter_intermediate_size=LLAMA2.intermediate_size,
    layers=(0, 1, 2),
)
"""Between LLAMA2 as drafter and a verifier of hidden size 24."""


def view(
    token_ids: Sequence[int],
    *,
    request: str = "a",
    max_draft_tokens: int = 99,
    features: Tensor | None = None,
) -> SequenceView:
    """What a policy would show a drafter of a request with these tokens."""
    return SequenceView(
        request_id=request,
        token_ids=list(token_ids),
        copies=NO_COPIES,
        max_draft_tokens=max_draft_tokens,
        probe_score=None,
        features=features,
    )


def random_head(kind: type[SteeringHead] = SteeringHead) -> SteeringHead:
    """A head as if trained."""
    head = kind(SHAPE)
    generator = torch.Generator().manual_seed(3)
    for parameter in head.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise * parameter.shape[-1] ** -0.5)
    return head


def our_layout(directory: Path, kind: type[SteeringHead] = SteeringHead) -> Path:
    """A drafter and a head beside it."""
    write_checkpoint(directory, LLAMA2, seed=6)
    save_steering(random_head(kind), directory)
    return directory


def drop(name: str) -> Callable[[dict[str, Tensor]], None]:
    """Takes a tensor out of a checkpoint."""
    return lambda tensors: tensors.__delitem__(name)


def cut(name: str) -> Callable[[dict[str, Tensor]], None]:
    """Takes the last row off a tensor."""
    return lambda tensors: tensors.update({name: tensors[name][:-1].clone()})


def add(name: str) -> Callable[[dict[str, Tensor]], None]:
    """Puts a tensor too many into a checkpoint."""
    return lambda tensors: tensors.update({name: torch.zeros(1)})
