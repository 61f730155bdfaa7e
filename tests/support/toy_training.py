"""A training that is over in a second: a tiny next-token model with dropout, on a fixed sequence.

``python -m tests.support.toy_training FOLDER KEY=VALUE...`` runs it in a process of its own, under
torchrun too; ``die_in_step=N`` and ``die_in_save=N`` end that process by SIGKILL in mid-work.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafters.training.backends import TorchBackend
from drafters.training.batches import Batch
from drafters.training.capture import Transcript
from drafters.training.config import TrainingConfig
from drafters.training.loop import TrainingData, TrainingResult, train
from drafters.training.losses import masked_mean, shift_targets
from drafters.training.step_log import TRAINING_LOG, read_log
from parallel.data_parallel import DataParallel, data_parallel_world
from parallel.rendezvous import destroy_process_group, init_from_torchrun

VOCAB_SIZE = 23
TIMES = ("seconds", "tokens_per_second")
"""What two equal runs may log differently."""


class ToyModel(nn.Module):
    """Embedding, dropout, a hidden layer, logits; one parameter is frozen."""

    def __init__(self, *, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, 16)
        self.hidden = nn.Linear(16, 32)
        self.head = nn.Linear(32, VOCAB_SIZE)
        self.dropout = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, token_ids_BT: Tensor) -> Tensor:
        """Logits [B, T, V] for the next token."""
        hidden = self.dropout(self.embedding(token_ids_BT))
        logits: Tensor = self.head(torch.relu(self.hidden(hidden))) * self.scale
        return logits


@dataclass(kw_only=True)
class ToyTask:
    """Learns to continue ``next_token``; weighs its loss by a random number near 1."""

    module: ToyModel
    noise: float = 0.01
    """Share by which the drawn number may raise the loss."""
    die_in_step: int = 0
    """Training batch whose loss ends the process; 0: none."""
    fail_in_step: int = 0
    """Training batch whose loss is no number; 0: none."""
    calls: int = 0

    def loss(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Cross entropy of the generated tokens."""
        self.calls += self.module.training
        if self.module.training and self.calls == self.die_in_step:
            os.kill(os.getpid(), signal.SIGKILL)
        failing = self.module.training and self.calls == self.fail_in_step
        logits_BTV = self.module(batch.token_ids).float()
        targets_BT = torch.roll(batch.token_ids, -1, dims=1)
        counted_BT = shift_targets(batch.generated)
        surprise_BT = functional.cross_entropy(
            logits_BTV.transpose(1, 2), targets_BT, reduction="none"
        )
        agree_BT = logits_BTV.argmax(-1) == targets_BT
        weight = (
            1 + self.noise * torch.rand((), generator=generator) + (torch.nan if failing else 0.0)
        )
        acceptance = float(masked_mean(agree_BT.float(), counted_BT))
        return weight * masked_mean(surprise_BT, counted_BT), {"acceptance": acceptance}


def toy_task(*, dropout: float = 0.1, disturbance: float = 0.0, **settings: Any) -> ToyTask:
    """The same weights every time, plus ``disturbance``."""
    torch.manual_seed(5)
    task = ToyTask(module=ToyModel(dropout=dropout), **settings)
    with torch.no_grad():
        for parameter in task.module.parameters():
            parameter.add_(disturbance * parameter.requires_grad)
    return task


def toy_config(**changes: Any) -> TrainingConfig:
    """Twelve quick steps."""
    defaults: dict[str, Any] = {
        "steps": 12,
        "tokens_per_batch": 64,
        "learning_rate": 0.02,
        "save_every": 5,
        "evaluate_every": 4,
        "num_threads": 1,
    }
    return TrainingConfig(**{**defaults, **changes})


def next_token(token: int) -> int:
    """What the toy verifier says after a token."""
    return (3 * token + 1) % VOCAB_SIZE


def toy_transcripts(count: int, *, first: int = 0) -> list[Transcript]:
    """Transcripts of 8 to 20 tokens, every one another."""
    return [_transcript(number) for number in range(first, first + count)]


def _transcript(number: int) -> Transcript:
    token_ids = [number % VOCAB_SIZE]
    while len(token_ids) < 8 + number % 13:
        token_ids.append(next_token(token_ids[-1]))
    cut = 2 + number % 4
    return Transcript(prompt_ids=tuple(token_ids[:cut]), output_ids=tuple(token_ids[cut:]))


def toy_data() -> TrainingData:
    """Sixty transcripts to learn from, ten others to judge by."""
    return TrainingData(training=toy_transcripts(60), validation=toy_transcripts(10, first=100))


def toy_run(
    folder: Path, config: TrainingConfig, ranks: DataParallel | None = None, **task: Any
) -> TrainingResult:
    """Train the toy in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return train(toy_task(**task), toy_data(), config, folder, ranks or DataParallel.single())


def numbers(folder: Path, *without: str) -> list[dict[str, float]]:
    """The log's lines without the times."""
    left_out = {*TIMES, *without}
    lines = read_log(folder / TRAINING_LOG)
    return [{key: line[key] for key in line if key not in left_out} for line in lines]


def die_in_save(number: int) -> None:
    """End this process in its ``number``-th checkpoint, with the folder half written."""
    whole, calls = TorchBackend.save, 0

    def half(self: TorchBackend, folder: Path) -> None:
        nonlocal calls
        calls += 1
        whole(self, folder)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)

    TorchBackend.save = half  # type: ignore[method-assign]


def main() -> None:
    """One run as the command line says."""
    folder, *settings = sys.argv[1:]
    values = dict(setting.split("=") for setting in settings)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        init_from_torchrun()
    die_in_save(int(values.pop("die_in_save", 0)))
    die_in_step = int(values.pop("die_in_step", 0))
    config = toy_config(
        **{key: int(value) if value.isdigit() else value for key, value in values.items()}
    )
    toy_run(Path(folder), config, data_parallel_world(), die_in_step=die_in_step)
    destroy_process_group()


if __name__ == "__main__":
    main()
