"""Training of small drafters: cut from the verifier, distilled, and steered.

``python -m launch.train small`` and ``steered``. The drafter keeps a few of the verifier's layers,
its embedding and its head; embedding and head stay the verifier's and are not stored again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.shared_embedding import with_embedding
from drafters.steered import install_steering
from drafters.steering import SteeringHead, steering_shape
from drafters.steering_files import save_steering
from drafters.training.config import TrainingConfig
from drafters.training.loop import TrainingData, TrainingResult, train
from drafters.training.small import SmallTask
from drafters.training.steered import OFFSETS, SteeredTask
from engine.config import EngineConfig
from engine.models.decoder import Decoder
from engine.weights import load_layers, load_model, read_model_config, resolve_model
from engine.weights.checkpoint import SINGLE_NAME
from engine.weights.names import pieces_of, split_pieces
from launch.drafter_data import DataConfig
from launch.training_ranks import TrainingRanks, frozen_verifier
from parallel.mesh import Mesh

_SHARED = ("embed.", "head.")
"""Parameters that stay the verifier's."""

_SHORT = 16
"""Positions of a model that is only read, not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationRun:
    """What is cut, and what it learns from."""

    engine: EngineConfig
    """The verifier."""
    training: TrainingConfig
    data: DataConfig = field(default_factory=DataConfig)
    layers: tuple[int, ...] = (0, 1, 2, 29)
    """The verifier's layers that the drafter keeps, ascending."""
    start: str | None = None
    """A drafter that was distilled before: its directory; None cuts a fresh one."""

    def __post_init__(self) -> None:
        if not self.layers or list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers must be different and ascending, not {self.layers}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringRun(DistillationRun):
    """Distillation with steering."""

    lookahead: int = 5
    """Offsets that are trained: the longest draft."""
    offsets: str = "one"
    """Which rows share an offset: one (the method), random or block."""
    frozen_drafter: bool = False
    """Train the steering head alone."""

    def __post_init__(self) -> None:
        DistillationRun.__post_init__(self)
        if self.lookahead < 1:
            raise ValueError(f"lookahead must be at least 1, not {self.lookahead}.")
        if self.offsets not in OFFSETS:
            raise ValueError(f"offsets must be one of {', '.join(OFFSETS)}, not {self.offsets!r}.")


def check_cut(run: DistillationRun) -> None:
    """Refuse early, before answers are made, what cannot be cut or started from.

    Raises:
        ValueError: a layer that the verifier does not have, or a start that is no drafter.
    """
    num_layers = read_model_config(resolve_model(run.engine.model)).num_layers
    missing = [layer for layer in run.layers if not 0 <= layer < num_layers]
    if missing:
        raise ValueError(f"the verifier has layers 0 to {num_layers - 1}, not {missing[0]}.")
    if run.start is None:
        return
    if not (Path(run.start) / SINGLE_NAME).is_file():
        raise ValueError(f"--start {run.start} is no drafter: it must hold {SINGLE_NAME}.")
    found = read_model_config(Path(run.start)).num_layers
    if found != len(run.layers):
        raise ValueError(
            f"--start {run.start} holds a drafter of {found} layers, and {len(run.layers)} are to "
            "be trained."
        )


def train_small(
    run: DistillationRun, data: TrainingData, folder: Path, ranks: TrainingRanks
) -> TrainingResult:
    """Distil a drafter and write it; collective over the ranks."""
    drafter = cut_drafter(run)
    task = SmallTask(drafter, frozen_verifier(run.engine, ranks))
    result = train(task, data, run.training, folder, ranks.data_parallel)
    drafter.load_state_dict(result.weights, strict=False)
    if ranks.is_first:
        save_small(drafter, run, folder)
    return result


def train_steered(
    run: SteeringRun, data: TrainingData, folder: Path, ranks: TrainingRanks
) -> TrainingResult:
    """Train a steering head, with its drafter or alone, and write both; collective."""
    verifier, drafter = frozen_verifier(run.engine, ranks), cut_drafter(run)
    head = SteeringHead(steering_shape(verifier.model.config, drafter.config))
    steering = install_steering(drafter, head)
    task = SteeredTask(
        drafter,
        steering,
        verifier,
        lookahead=run.lookahead,
        offsets=OFFSETS[run.offsets],
    )
    if run.frozen_drafter:
        task.freeze_drafter()
    result = train(task, data, run.training, folder, ranks.data_parallel)
    task.module.load_state_dict(result.weights, strict=False)
    if ranks.is_first:
        save_small(drafter, run, folder)
        save_steering(head.to(torch.bfloat16), folder)
    return result


def cut_drafter(run: DistillationRun) -> Decoder:
    """The chosen layers of a verifier with its ends, in float32.

    Raises:
        ValueError: a start that does not fit.
    """
    drafter = load_layers(
        run.engine.model,
        run.layers,
        dtype=torch.float32,
        max_model_len=run.engine.max_model_len,
    )
    if run.start is not None:
        _load_start(drafter, Path(run.start), resolve_model(run.engine.model))
    return drafter


def save_small(drafter: Decoder, run: DistillationRun, folder: Path) -> None:
    """Write layers and norm in bfloat16 and a configuration; the ends stay the verifier's."""
    source = resolve_model(run.engine.model)
    fields = json.loads((source / "config.json").read_text(encoding="utf-8"))
    fields |= {"num_hidden_layers": len(run.layers), "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tensors: dict[str, Tensor] = {}
    for name, parameter in drafter.named_parameters():
        if name.startswith(_SHARED):
            continue
        pieces = pieces_of(name, drafter.config)
        tensors |= split_pieces(parameter.to(torch.bfloat16), pieces)
    save_file(tensors, folder / SINGLE_NAME, metadata={"format": "pt"})
    for file in source.glob("generation_config.json"):
        shutil.copyfile(file, folder / file.name)


def write_summary(
    result: TrainingResult, data: TrainingData, origin: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """``provenance.json``: where the drafter came from and how well it validates."""
    summary = {
        "validation": result.validation,
        "steps": result.steps,
        "backend": result.backend,
        "data": {
            "training_transcripts": len(data.training),
            "training_tokens": sum(len(entry.output_ids) for entry in data.training),
            "validation_transcripts": len(data.validation),
        },
    }
    text = json.dumps({**origin, **summary}, indent=1, default=str)
    (folder / "provenance.json").write_text(text + "\n")
    return summary


def _load_start(drafter: Decoder, directory: Path, verifier: Path) -> None:
    """Take over the layers and the norm of a drafter of the same shape."""
    whole = with_embedding(directory, verifier)
    start = load_model(str(whole), dtype=torch.float32, mesh=Mesh.single(), max_model_len=_SHORT)
    ours = dict(drafter.named_parameters())
    theirs = dict(start.named_parameters())
    if {n: p.shape for n, p in ours.items()} != {n: p.shape for n, p in theirs.items()}:
        raise ValueError(
            f"{directory} holds a drafter of {start.config.num_layers} layers, which is not the "
            f"shape of the one to be trained ({drafter.config.num_layers} layers)."
        )
    for name, parameter in ours.items():
        parameter.data.copy_(theirs[name])
