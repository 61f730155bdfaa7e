"""Back ends of the training loop: who holds weights and moments, and averages gradients.

A back end sees one task. Plain torch holds everything on every rank; DeepSpeed (a file of its own)
shards moments, gradients or weights over the ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from drafters.training.batches import Batch
from drafters.training.config import TrainingConfig
from drafters.training.task import LossAndMetrics, TrainingTask
from parallel.data_parallel import DataParallel, average, broadcast_from_first, wait_for_all

_LOGGER = logging.getLogger(__name__)
_STATE = "torch.pt"


class Backend(Protocol):
    """Everything the loop asks for; every method is collective over the data-parallel ranks."""

    @property
    def name(self) -> str:
        """Its name in a configuration: "torch", "zero1", "zero2" or "zero3"."""
        ...

    @property
    def module(self) -> nn.Module:
        """The trained module, to switch between training and evaluation."""
        ...

    def forward(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """The task's loss and metrics of a batch."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add one micro-batch's gradient to the step's."""
        ...

    def step(self, learning_rate: float) -> float:
        """Average over micro-batches and ranks, clip, update; returns the norm before the clip.

        There must have been ``gradient_accumulation`` calls of ``backward``.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write weights and moments into a folder that exists."""
        ...

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote; raises ``ValueError`` when it does not fit the module."""
        ...

    def unwrap(self) -> dict[str, Tensor]:
        """Whole trained weights in float32 by their names in the task's module, on every rank."""
        ...

    def close(self) -> None:
        """Let go of what would outlive the training; nothing may be called afterwards."""
        ...


def make_backend(task: TrainingTask, config: TrainingConfig, ranks: DataParallel) -> Backend:
    """The configured back end for a task.

    Raises:
        ValueError: a ZeRO back end without DeepSpeed or without torchrun, or nothing to train.
    """
    if not any(parameter.requires_grad for parameter in task.module.parameters()):
        raise ValueError("the module has no parameter that requires gradients: nothing to train.")
    name = resolve_backend(config.backend)
    if name == "torch":
        return TorchBackend(task, config, ranks)
    try:
        from drafters.training import deepspeed_backend  # noqa: PLC0415 - only where it is wanted
    except ImportError as error:
        raise ValueError(
            f"backend {name!r} cannot be used, because the installed deepspeed cannot be imported "
            f"({error}): repair it or take backend 'torch'."
        ) from error
    return deepspeed_backend.DeepSpeedBackend(task, config, stage=int(name.removeprefix("zero")))


def resolve_backend(name: str) -> str:
    """The back end that "auto" means here, any other name as it is; says so where it falls back.

    Raises:
        ValueError: a ZeRO back end without DeepSpeed or without torchrun.
    """
    launched = torch.distributed.is_initialized()
    installed = find_spec("deepspeed") is not None
    if name == "auto":
        return _automatic(launched=launched, installed=installed)
    if name.startswith("zero") and not installed:
        raise ValueError(
            f"backend {name!r} needs the package deepspeed, which is not installed: "
            "pip install 'switchsteer[cuda]' or deepspeed alone, or take backend 'torch'."
        )
    if name.startswith("zero") and not launched:
        raise ValueError(
            f"backend {name!r} needs ranks that found each other: start with torchrun "
            "--standalone --nproc-per-node N, or take backend 'torch'."
        )
    return name


def _automatic(*, launched: bool, installed: bool) -> str:
    if launched and installed:
        return "zero1"
    if launched:
        _LOGGER.warning(
            "DeepSpeed is not installed: falling back to plain torch, where every rank holds all "
            "moments and gradients (pip install 'switchsteer[cuda]' for ZeRO)"
        )
    else:
        _LOGGER.info("one process: plain torch, as there is nothing to shard")
    return "torch"


class TorchBackend:
    """AdamW on every rank; gradients are averaged over the ranks.

    With dtype bfloat16 the module computes in bfloat16, and a float32 copy of the weights takes
    the gradients of all micro-batches and the updates.
    """

    name = "torch"

    def __init__(self, task: TrainingTask, config: TrainingConfig, ranks: DataParallel) -> None:
        self._task = task
        self._config = config
        self._ranks = ranks
        self._masters = _masters(task.module)
        broadcast_from_first(list(self._masters.values()), ranks)
        task.module.to(getattr(torch, config.dtype))
        self._trained = _trained_parameters(task.module)
        self._publish()
        self._optimizer = torch.optim.AdamW(
            list(self._masters.values()),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )

    @property
    def module(self) -> nn.Module:
        """The task's module."""
        return self._task.module

    def forward(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """The task's loss and metrics of a batch."""
        return self._task.loss(batch, generator)

    def backward(self, loss: Tensor) -> None:
        """Add one micro-batch's gradient, in float32, to the step's."""
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in self._trained.items():
            gradient = _gradient(self._masters[name])
            if parameter.grad is not None:
                gradient += parameter.grad.float() / self._config.gradient_accumulation
            parameter.grad = None

    def step(self, learning_rate: float) -> float:
        """Average over the ranks, clip, update; returns the norm before the clip."""
        masters = list(self._masters.values())
        average([_gradient(master) for master in masters], self._ranks)
        norm = nn.utils.clip_grad_norm_(masters, self._config.gradient_clip)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._publish()
        return float(norm)

    def save(self, folder: Path) -> None:
        """Write weights and moments: the first rank's, as all ranks hold the same."""
        if self._ranks.is_first:
            state = {"weights": self._masters, "optimizer": self._optimizer.state_dict()}
            torch.save(state, folder / _STATE)
        wait_for_all(self._ranks)

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote; raises ``ValueError`` when it does not fit the module."""
        state = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
        check_weights(state["weights"], self._masters, folder)
        for name, master in self._masters.items():
            master.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._publish()

    def unwrap(self) -> dict[str, Tensor]:
        """The float32 weights by name, copied."""
        return {name: master.clone() for name, master in self._masters.items()}

    def close(self) -> None:
        """Nothing outlives the training."""

    @torch.no_grad()
    def _publish(self) -> None:
        """Give the module the float32 weights in its own precision."""
        for name, parameter in self._trained.items():
            parameter.copy_(self._masters[name])


def check_weights(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path) -> None:
    """Raises ``ValueError`` naming the first weight that a checkpoint lacks or has otherwise."""
    for name in sorted(found.keys() | wanted.keys()):
        there, here = (
            "no such weight" if tensor is None else f"shape {list(tensor.shape)}"
            for tensor in (found.get(name), wanted.get(name))
        )
        if there != here:
            raise ValueError(
                f"checkpoint {folder} does not fit the module: {name} has {there} there and "
                f"{here} here; take another output folder."
            )


def _trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def _masters(module: nn.Module) -> dict[str, Tensor]:
    """The weights in float32: the module's own memory where that is their precision."""
    return {
        name: parameter.detach().float() for name, parameter in _trained_parameters(module).items()
    }


def _gradient(master: Tensor) -> Tensor:
    """The tensor that collects a step's gradient, zero when nothing was collected yet."""
    if master.grad is None:
        master.grad = torch.zeros_like(master)
    return master.grad
