"""The one training loop: EAGLE-3, small and steered drafters are tasks, torch and ZeRO back ends.

A step: forward and backward over this rank's micro-batches, average, clip, update, log; now and
then a pass over the validation transcripts and a checkpoint. Nothing depends on when the process
started: data, learning rate and random draws follow from seed, step and rank, weights, moments and
the default generators come from the checkpoint. A run that is killed and started again with the
same arguments therefore writes the numbers of an undisturbed run, bit for bit on the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from drafters.training.backends import make_backend
from drafters.training.batches import (
    Batch,
    TrainingBatches,
    derived_generator,
    fingerprint,
    validation_batches,
)
from drafters.training.capture import Transcript
from drafters.training.checkpoints import CheckpointFolder, RunFacts
from drafters.training.config import TrainingConfig
from drafters.training.schedule import learning_rate
from drafters.training.step_log import StepLog
from drafters.training.task import ACCEPTANCE, TrainingTask
from parallel.data_parallel import DataParallel, total

Metrics = dict[str, float]
"""Means by name, the same on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Transcripts to learn from and transcripts to judge by; no prompt may be in both."""

    training: Sequence[Transcript]
    validation: Sequence[Transcript]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingResult:
    """What a finished run leaves."""

    weights: dict[str, Tensor]
    """Trained parameters in float32, by their names in the task's module."""
    validation: Metrics
    """Means over the validation transcripts, generated tokens weighing alike."""
    steps: int
    """Optimizer steps of the whole run."""
    backend: str
    """The back end that was used."""


def train(
    task: TrainingTask,
    data: TrainingData,
    config: TrainingConfig,
    folder: Path,
    ranks: DataParallel,
) -> TrainingResult:
    """Train, resuming from the newest checkpoint in ``folder``; collective over the ranks.

    ``folder`` must exist; it gets ``training.jsonl``, ``validation.jsonl`` and ``checkpoints/``.

    Raises:
        ValueError: data, configuration, back end or checkpoint that do not fit.
        FloatingPointError: a loss or gradient that is no number; the last checkpoint stays.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    return Trainer(task, data, config, folder, ranks).run()


class Trainer:
    """One run: made from its parts, restored to where it was, run to its end."""

    def __init__(
        self,
        task: TrainingTask,
        data: TrainingData,
        config: TrainingConfig,
        folder: Path,
        ranks: DataParallel,
    ) -> None:
        """Raises ``ValueError`` as ``train`` does; nothing is trained yet."""
        self._config = config
        self._folder = folder
        self._ranks = ranks
        self._batches = TrainingBatches(data.training, config, ranks)
        self._validation = validation_batches(data.validation, config.tokens_per_batch, ranks)
        self._backend = make_backend(task, config, ranks)
        self._device = next(task.module.parameters()).device
        facts = RunFacts(
            config=config,
            data=fingerprint(data.training),
            world_size=ranks.size,
            backend=self._backend.name,
        )
        self._checkpoints = CheckpointFolder(folder / "checkpoints", facts, ranks)
        self._done = self._checkpoints.restore(self._backend)
        self._newest: Metrics | None = None
        """The newest pass over the validation transcripts in this process."""

    def run(self) -> TrainingResult:
        """All steps that are left; a run is run once."""
        total_steps = self._batches.total_steps
        log = StepLog(self._folder, self._ranks, total_steps=total_steps, done_steps=self._done)
        with log:
            for step in range(self._done, total_steps):
                log.step(self._step(step, total_steps))
                self._after(step + 1, total_steps, log)
        result = TrainingResult(
            weights=self._backend.unwrap(),
            validation=self._newest or self._evaluate(),
            steps=total_steps,
            backend=self._backend.name,
        )
        self._backend.close()
        return result

    def _step(self, step: int, total_steps: int) -> Metrics:
        """One optimizer step; returns its line in the log."""
        begun = time.perf_counter()
        batches = self._batches.of_step(step)
        metrics = self._gradients(step, batches)
        _check_number(metrics["loss"], "loss", step)
        rate = learning_rate(step, total_steps, self._config)
        norm = self._backend.step(rate)
        _check_number(norm, "gradient norm", step)
        seconds = time.perf_counter() - begun
        tokens = metrics.pop("tokens")
        return {
            "step": step + 1,
            "epoch": self._batches.epoch_of(step),
            **metrics,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }

    def _gradients(self, step: int, batches: Sequence[Batch]) -> Metrics:
        """Backward passes of a step; returns means over micro-batches and ranks, and the tokens."""
        self._backend.module.train()
        seen = []
        for index, batch in enumerate(batches):
            generator = derived_generator(self._config.seed, "loss", step, index, self._ranks.rank)
            loss, metrics = self._backend.forward(batch.to(self._device), generator)
            assert ACCEPTANCE in metrics, "a task reports its acceptance"
            self._backend.backward(loss)
            seen.append((float(loss.detach()), metrics, 1.0))
        tokens = torch.tensor([sum(batch.num_tokens for batch in batches)], device=self._device)
        return self._mean(seen) | {"tokens": int(total(tokens, self._ranks))}

    @torch.no_grad()
    def _evaluate(self) -> Metrics:
        """Means over the validation transcripts; a batch weighs as its generated tokens."""
        self._backend.module.eval()
        seen = []
        for index, (batch, counts) in enumerate(self._validation):
            generator = derived_generator(self._config.seed, "validation", index, self._ranks.rank)
            loss, metrics = self._backend.forward(batch.to(self._device), generator)
            weight = float(batch.num_generated) if counts else 0.0
            seen.append((float(loss), metrics, weight))
        return self._mean(seen)

    def _mean(self, seen: Iterable[tuple[float, Metrics, float]]) -> Metrics:
        """Weighted means of (loss, metrics, weight) over all ranks."""
        sums: Metrics = {}
        weights = 0.0
        for loss, metrics, weight in seen:
            weights += weight
            for name, value in {"loss": loss, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + weight * value
        numbers = torch.tensor([*sums.values(), weights], dtype=torch.float64)
        *summed, weights = total(numbers.to(self._device), self._ranks).tolist()
        return {name: value / weights for name, value in zip(sums, summed, strict=True)}

    def _after(self, done: int, total_steps: int, log: StepLog) -> None:
        """What is due after ``done`` steps; validation before the checkpoint that counts it."""
        last = done == total_steps
        if last or done % self._config.evaluate_every == 0:
            self._newest = self._evaluate()
            log.validation({"step": done, **self._newest})
        if last or done % self._config.save_every == 0:
            self._checkpoints.save(done, self._backend)


def _check_number(value: float, what: str, step: int) -> None:
    """All ranks see the same value, so all of them stop."""
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the {what} of step {step + 1} is {value}: lower learning_rate or look at the data."
        )
