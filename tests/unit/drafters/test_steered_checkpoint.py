"""Steered drafters on disk: our layout, the published one, and what is wrong with broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafters.draft_tree import ChainShape
from drafters.small_model import DraftSettings, Verifier
from drafters.steered import install_steering
from drafters.steered_checkpoint import (
    load_steered,
    load_steered_projection,
    steered_directory,
)
from drafters.steering import HEADS, SteeringHead
from drafters.steering_files import load_steering, save_drafter
from engine.methods import Kernels
from engine.records import SequenceView
from tests.support.steered import SHAPE, add, cut, drop, our_layout, random_head, view
from tests.support.tiny import (
    LLAMA2,
    QWEN3,
    SMOLLM,
    load_decoder,
    write_checkpoint,
)

VERIFIER = replace(LLAMA2, hidden_size=24, num_layers=8)
TOKENS = torch.tensor([3, 1, 4, 1, 5])


def settings(dtype: torch.dtype = torch.float32, kernels: Kernels = "auto") -> DraftSettings:
    return DraftSettings(
        shape=ChainShape(num_tokens=5), dtype=dtype, kernels=kernels, max_model_len=256
    )


def prompt_view() -> SequenceView:
    features = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    return view([3, 1, 4, 1, 5], max_draft_tokens=9, features=features)


def verifier_of(directory: Path) -> Verifier:
    return Verifier(directory=directory, vocab_size=LLAMA2.vocab_size)


@pytest.mark.parametrize("kind", HEADS.values())
def test_a_head_is_saved_and_loaded_exactly(tmp_path: Path, kind: type[SteeringHead]) -> None:
    """Catches a tensor, a size or the variant that is lost on the way."""
    directory = our_layout(tmp_path / "steered", kind)
    loaded, original = load_steering(directory), random_head(kind)
    assert type(loaded) is kind
    assert loaded.shape == SHAPE
    assert loaded.state_dict().keys() == original.state_dict().keys()
    for name, tensor in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("config", [LLAMA2, QWEN3, SMOLLM])
def test_a_decoder_is_saved_as_the_checkpoint_it_came_from(tmp_path: Path, config: Any) -> None:
    """Catches merged matrices that are cut at wrong rows, and a tied head that is stored twice."""
    source = write_checkpoint(tmp_path / "source", config)
    model = load_decoder(source, config, dtype=torch.float32)
    if config is LLAMA2:
        install_steering(model, random_head())
    save_drafter(model, tmp_path / "saved", like=source)
    before, after = (load_file(d / "model.safetensors") for d in (source, tmp_path / "saved"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    assert (tmp_path / "saved" / "chat_template.jinja").is_file()


@pytest.mark.parametrize("kind", HEADS.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_our_layout_drafts(tmp_path: Path, dtype: torch.dtype, kind: type[SteeringHead]) -> None:
    """From files to a draft, on packed and plain kernels."""
    directory = our_layout(tmp_path / "steered", kind)
    drafter = load_steered(directory, settings(dtype), verifier=verifier_of(directory))
    (chain,) = drafter.draft(prompt_view()).candidates
    assert len(chain) == 5
    if dtype != torch.bfloat16:
        plain = load_steered(directory, settings(dtype, "torch"), verifier=verifier_of(directory))
        assert plain.draft(prompt_view()).candidates == (chain,)


def test_the_projection_comes_from_the_head(tmp_path: Path) -> None:
    """What the verifier reads is W_hml, in the verifier's dtype, at the head's taps."""
    directory = our_layout(tmp_path / "steered")
    projection = load_steered_projection(directory, VERIFIER, dtype=torch.float64)
    head = random_head()
    assert projection.taps == (3, 4, 5)
    assert torch.equal(torch.cat(projection.weights, dim=1), head.mix.weight.double())
    assert projection.bias is not None
    assert torch.equal(projection.bias, head.mix.bias.double())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("scale.weight"), r"scale\.weight of shape \[132, 24\] is missing"),
        (cut("scale.weight"), r"scale\.weight has shape \[131, 24\], .* needs \[132, 24\]"),
        (add("extra"), r"tensor extra has no place in a merged head"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    """Catches a head that is half random because a tensor was missing."""
    directory = our_layout(tmp_path / "steered")
    file = directory / "steering.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "switchsteer-steering-1"})
    with pytest.raises(ValueError, match=message):
        load_steering(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "describes no steering head"),
        ({"variant": "none"}, "describes no steering head"),
        ({"taps": 5}, "taps must be a list of integers, not 5"),
        ({"taps": [1, 2]}, "taps must be three integers"),
        ({"taps": [3, 2, 1]}, "must be positive and ascending"),
        ({"layers": [0, 0]}, "they must be different"),
        ({"drafter_hidden_size": None}, "drafter_hidden_size must be a positive integer"),
    ],
)
def test_wrong_descriptions_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Catches a traceback from a hand-edited file."""
    directory = our_layout(tmp_path / "steered")
    file = directory / "steering.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load_steering(directory)


def test_files_that_are_no_steered_drafter_are_refused(tmp_path: Path) -> None:
    """A plain drafter, a cut-off file, a file of something else."""
    plain = write_checkpoint(tmp_path / "plain", LLAMA2)
    with pytest.raises(ValueError, match=r"holds no steered drafter: it needs steering\.json"):
        steered_directory(plain)
    broken = our_layout(tmp_path / "broken")
    file = broken / "steering.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_steering(broken)
    file.unlink()
    with pytest.raises(ValueError, match=r"steering\.safetensors is missing"):
        load_steering(broken)
    save_file(random_head().state_dict(), file)
    with pytest.raises(ValueError, match="holds no steering head"):
        load_steering(broken)


def test_a_head_for_another_pair_is_refused(tmp_path: Path) -> None:
    """Catches a drafter that is steered by states of the wrong size."""
    directory = our_layout(tmp_path / "steered")
    with pytest.raises(ValueError, match="verifier hidden size 24, not 32"):
        load_steered_projection(directory, LLAMA2, dtype=torch.float32)
    file = directory / "steering.json"
    file.write_text(
        file.read_text().replace('"drafter_hidden_size": 32', '"drafter_hidden_size": 9')
    )
    with pytest.raises(ValueError, match="drafter hidden size 9, not 32"):
        load_steered(directory, settings(), verifier=verifier_of(directory))
