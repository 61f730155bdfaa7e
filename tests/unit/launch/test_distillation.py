"""Cutting a drafter from a verifier, writing it without the embedding, and loading it whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from drafters.shared_embedding import lacks_embedding, with_embedding
from drafters.training.config import TrainingConfig
from engine.config import EngineConfig
from engine.weights import load_model
from launch.distillation import (
    DistillationRun,
    SteeringRun,
    check_cut,
    cut_drafter,
    save_small,
)
from parallel.mesh import Mesh
from tests.support.tiny import SMOLLM, write_checkpoint

VERIFIER = replace(SMOLLM, num_layers=5)


@pytest.fixture
def verifier(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "verifier", VERIFIER)
    return tmp_path / "verifier"


def run(verifier: Path, **changes: object) -> DistillationRun:
    engine = EngineConfig(model=str(verifier), dtype="float32", max_model_len=64)
    values = {"layers": (0, 3), **changes}
    return DistillationRun(engine=engine, training=TrainingConfig(steps=1), **values)  # type: ignore[arg-type]


def test_a_cut_drafter_keeps_the_chosen_layers_and_the_ends(verifier: Path) -> None:
    model = load_model(str(verifier), dtype=torch.float32, mesh=Mesh.single(), max_model_len=64)
    drafter = cut_drafter(run(verifier))
    ours, theirs = dict(drafter.named_parameters()), dict(model.named_parameters())
    assert drafter.config.num_layers == 2
    for name, parameter in ours.items():
        source = name.replace("layers.1.", "layers.3.")
        assert torch.equal(parameter, theirs[source]), name


def test_a_written_drafter_borrows_the_embedding_and_loads_whole(
    verifier: Path, tmp_path: Path
) -> None:
    settings = run(verifier)
    drafter = cut_drafter(settings)
    folder = tmp_path / "drafter"
    folder.mkdir()
    save_small(drafter, settings, folder)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert not any("embed" in name or "lm_head" in name for name in file.keys())  # noqa: SIM118
    assert lacks_embedding(folder)
    whole = with_embedding(folder, verifier, cache_dir=tmp_path / "cache")
    assert whole == with_embedding(folder, verifier, cache_dir=tmp_path / "cache")
    loaded = load_model(str(whole), dtype=torch.bfloat16, mesh=Mesh.single(), max_model_len=64)
    for name, parameter in loaded.named_parameters():
        expected = dict(drafter.named_parameters())[name].to(torch.bfloat16)
        assert torch.equal(parameter, expected), name
    assert with_embedding(whole, verifier) == whole
    start = cut_drafter(run(verifier, start=str(folder)))
    assert torch.equal(
        start.get_parameter("layers.1.mlp.down.weight"),
        loaded.get_parameter("layers.1.mlp.down.weight").float(),
    )


def test_a_start_of_another_shape_or_none_is_refused_early(verifier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"drafter is no drafter: it must hold model\.safetensors"):
        check_cut(run(verifier, start=str(folder)))
    settings = run(verifier, layers=(0,))
    save_small(cut_drafter(settings), settings, folder)
    with pytest.raises(ValueError, match="holds a drafter of 1 layers, and 2 are to be trained"):
        check_cut(run(verifier, start=str(folder)))
    check_cut(run(verifier, layers=(1,), start=str(folder)))


@pytest.mark.parametrize("layers", [(), (2, 1), (1, 1)])
def test_impossible_layers_are_refused(verifier: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layers must be different and ascending"):
        run(verifier, layers=layers)


def test_layers_that_the_verifier_lacks_are_refused(verifier: Path) -> None:
    with pytest.raises(ValueError, match="layers 0 to 4, not 7"):
        check_cut(run(verifier, layers=(0, 7)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"lookahead": 0}, "lookahead must be at least 1"), ({"offsets": "x"}, "one of one, random")],
)
def test_impossible_steering_is_refused(changes: dict[str, object], sentence: str) -> None:
    engine = EngineConfig(model="m")
    with pytest.raises(ValueError, match=sentence):
        SteeringRun(engine=engine, training=TrainingConfig(steps=1), **changes)  # type: ignore[arg-type]
