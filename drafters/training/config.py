"""How a neural drafter is trained: one configuration for EAGLE-3, small and steered drafters.

Field texts become the help of the command line. Defaults follow EAGLE-3's published recipe where it
has one (AdamW with betas 0.9 and 0.95, no weight decay, clip 0.5), with a cosine as in SD² and
SpecForge.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

BackendName = Literal["auto", "torch", "zero1", "zero2", "zero3"]
TrainingPrecision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What is trained for how long, with which optimizer, on which back end."""

    steps: int | None = None
    """Optimizer steps; give these or epochs."""
    epochs: int | None = None
    """Passes over the data; give these or steps."""
    tokens_per_batch: int = 4_096
    """Tokens of a micro-batch on one rank, padding counted; no transcript may be longer."""
    gradient_accumulation: int = 1
    """Micro-batches of one rank whose gradients are averaged into a step."""
    learning_rate: float = 1e-4
    """Highest learning rate, reached at the end of the warm-up."""
    min_learning_rate_ratio: float = 0.1
    """Share of the learning rate at which the cosine ends."""
    warmup_share: float = 0.03
    """Share of the steps in which the learning rate rises linearly."""
    gradient_clip: float = 0.5
    """Largest norm of a step's gradient."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    dtype: TrainingPrecision = "float32"
    """Precision of passes and gradients; bfloat16 keeps float32 master weights."""
    seed: int = 0
    """Seed of the order of the data and of whatever a loss draws."""
    save_every: int = 500
    """Steps between checkpoints; there is always one at the end."""
    evaluate_every: int = 500
    """Steps between passes over the validation transcripts; there is always one at the end."""
    backend: BackendName = "auto"
    """torch, DeepSpeed's zero1, zero2 or zero3, or auto: zero1 under torchrun where installed."""
    num_threads: int | None = None
    """Threads; by default all cores."""

    def __post_init__(self) -> None:
        _check_duration(self.steps, self.epochs)
        for name in ("tokens_per_batch", "gradient_accumulation", "save_every", "evaluate_every"):
            _check_at_least_one(name, getattr(self, name))
        if self.num_threads is not None:
            _check_at_least_one("num_threads", self.num_threads)
        for name in ("learning_rate", "gradient_clip"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a number above 0, not {value}.")
        for name in ("min_learning_rate_ratio", "warmup_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}.")
        _check_optimizer(self.weight_decay, self.betas)
        _check_choice("dtype", self.dtype, get_args(TrainingPrecision))
        _check_choice("backend", self.backend, get_args(BackendName))


def _check_duration(steps: int | None, epochs: int | None) -> None:
    if (steps is None) == (epochs is None):
        found = "neither" if steps is None else "both"
        raise ValueError(f"exactly one of steps and epochs must be given, not {found}.")
    name, value = ("steps", steps) if steps is not None else ("epochs", epochs)
    _check_at_least_one(name, value)


def _check_at_least_one(name: str, value: int | None) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {value}.")


def _check_optimizer(weight_decay: float, betas: tuple[float, float]) -> None:
    if not (isfinite(weight_decay) and weight_decay >= 0):
        raise ValueError(f"weight_decay must be a number of at least 0, not {weight_decay}.")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers from 0 to below 1, not {betas}.")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
