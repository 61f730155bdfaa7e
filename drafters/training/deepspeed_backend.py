"""DeepSpeed ZeRO 1, 2 and 3 behind the loop's ``Backend``; the only file that imports DeepSpeed.

What this works around (DeepSpeed 0.19.8, torch 2.13):

* On a CPU, DeepSpeed compiles a shared-memory collective when it is initialised, which takes
  minutes, and raises where there is no compiler. It asks a table of its own whether the operator is
  compatible, so the operator is marked as not compatible; gloo does the work instead.
* It insists on an optimizer that it knows. torch's AdamW is passed in and allowed by name of the
  setting ``zero_allow_untested_optimizer``; nothing is compiled for it on any device.
* Without a launcher it looks for MPI, so ranks must have found each other before.
* It remembers process groups after the training, which ``close`` makes harmless.
* It calls collectives by names that torch now deprecates; those warnings alone are silenced.

Facts from DeepSpeed's ``comm/comm.py``, ``runtime/engine.py`` and ``utils/tensor_fragment.py``.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn

from drafters.training.batches import Batch
from drafters.training.config import TrainingConfig
from drafters.training.task import LossAndMetrics, TrainingTask

BUCKET_ELEMENTS = 50_000_000
"""Elements reduced or gathered together; fewer when the module has fewer."""

_TAG = "deepspeed"
_LAST_MESSAGES = 0.2
"""Seconds, where a thread needs less than a millisecond."""


class DeepSpeedBackend:
    """ZeRO over all ranks of the default process group."""

    def __init__(self, task: TrainingTask, config: TrainingConfig, *, stage: int) -> None:
        """Raises ``ValueError`` for a parameter without dimensions, which DeepSpeed cannot send."""
        assert dist.is_initialized()
        _check_dimensions(task.module)
        self.name = f"zero{stage}"
        self._module = task.module
        self._gradient_accumulation = config.gradient_accumulation
        self._pending = 0
        """Micro-batches since the last step."""
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        _do_not_compile()
        with _known_warnings():
            deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False)
            self._engine: Any = _engine(_LossModule(task), config, stage)

    @property
    def module(self) -> nn.Module:
        """The task's module."""
        return self._module

    def forward(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """The task's loss and metrics of a batch, computed under the engine's hooks."""
        with _known_warnings():
            loss, metrics = self._engine(batch, generator)
        return loss, metrics

    def backward(self, loss: Tensor) -> None:
        """Add one micro-batch's gradient to the step's."""
        with _known_warnings():
            self._engine.backward(loss)
            self._pending += 1
            if self._pending < self._gradient_accumulation:
                self._engine.step()  # counts the micro-batch; nothing is updated

    def step(self, learning_rate: float) -> float:
        """Average over micro-batches and ranks, clip, update; returns the norm before the clip."""
        assert self._pending == self._gradient_accumulation
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        with _known_warnings():
            self._engine.step()
        self._pending = 0
        return float(self._engine.get_global_grad_norm())

    def save(self, folder: Path) -> None:
        """Write weights and moments, every rank its share."""
        with _known_warnings():
            self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote with as many ranks and the same stage."""
        with _known_warnings():
            try:
                self._engine.load_checkpoint(str(folder), tag=_TAG)
            except RuntimeError as error:  # torch's message lists every weight: too long to repeat
                raise ValueError(
                    f"checkpoint {folder} does not fit the module: its weights have other names "
                    "or shapes; take another output folder."
                ) from error

    def unwrap(self) -> dict[str, Tensor]:
        """Whole float32 weights by name, gathered from all ranks."""
        with _known_warnings():
            return {
                name: safe_get_full_fp32_param(parameter).clone().view(_shape(parameter))
                for name, parameter in self._module.named_parameters()
                if parameter.requires_grad
            }

    def close(self) -> None:
        """End the engine, and let gloo's threads finish with the last messages.

        DeepSpeed and the module's parameters remember process groups, so the groups outlive
        ``destroy_process_group`` and their threads with them. A thread that lets go of a tensor
        while the interpreter ends aborts the process; a moment after the last message none does.
        """
        self._engine.destroy()
        self._engine = None
        time.sleep(_LAST_MESSAGES)


class _LossModule(nn.Module):
    """A module whose forward pass is the task's loss: ZeRO 3 needs its hooks around all of it."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.trained = task.module
        self._task = task

    def forward(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        return self._task.loss(batch, generator)


def _check_dimensions(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dim() == 0:
            raise ValueError(
                f"parameter {name} has no dimension, and DeepSpeed needs at least one: give it "
                "the shape [1] or take backend 'torch'."
            )


def _engine(module: nn.Module, config: TrainingConfig, stage: int) -> Any:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
    )
    num_elements = sum(_shape(parameter).numel() for parameter in trained)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config=_settings(config, stage, bucket=_bucket(num_elements)),
        dist_init_required=False,
    )
    return engine


def _bucket(num_elements: int) -> int:
    """A bucket for so many elements: DeepSpeed wants an even number."""
    return min(BUCKET_ELEMENTS, num_elements + num_elements % 2)


def _settings(config: TrainingConfig, stage: int, *, bucket: int) -> dict[str, Any]:
    """DeepSpeed's configuration; the micro-batch size is a formality, as ours varies."""
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": bucket}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": config.gradient_accumulation,
        "gradient_clipping": config.gradient_clip,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        # Printing is the loop's business.
        "steps_per_print": 2**62,
    }


def _do_not_compile() -> None:
    """Mark the CPU's shared-memory collective as not available, before it would be compiled."""
    operators: dict[str, bool] = getattr(deepspeed.ops, "__compatible_ops__", {})
    operators["deepspeed_shm_comm"] = False


def _shape(parameter: nn.Parameter) -> torch.Size:
    """The whole parameter's shape, also when ZeRO 3 has taken the tensor apart."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


@contextmanager
def _known_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"deepspeed|torch")
        yield
