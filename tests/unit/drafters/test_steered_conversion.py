"""Published SD² checkpoints: converted they are the same model, and broken ones are told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafters.steered import install_steering
from drafters.steered_checkpoint import steered_directory
from drafters.steering import HEADS, SteeringHead
from drafters.steering_files import load_steering
from engine.models.decoder import Decoder
from tests.support.causal import CausalContext
from tests.support.steered import add, cut, drop, our_layout, random_head
from tests.support.tiny import LLAMA2, load_decoder, random_tensors, write_checkpoint

TOKENS = torch.tensor([3, 1, 4, 1, 5])


def public_layout(
    directory: Path, base: Path, kind: type[SteeringHead] = SteeringHead, **settings: Any
) -> Path:
    """What upload_to_hf.py would have written for the same drafter and head."""
    head = random_head(kind).state_dict()
    tensors: dict[str, Tensor] = {}
    for name, tensor in random_tensors(LLAMA2, seed=6).items():
        tensors[
            "d_base." + name.replace(".self_attn", ".l.self_attn").replace(".mlp", ".l.mlp")
        ] = tensor
    for name in list(tensors):
        if "layernorm" in name:
            layer, _, rest = name.removeprefix("d_base.model.layers.").partition(".")
            tensors[f"d_base.model.layers.{layer}.l.{rest}"] = tensors.pop(name)
    public = {
        "mix.": "guidance_embd_layer.orig.",
        "norm.": "latent_mod_prep.norm.",
        "scale.": "latent_mod_prep.w_guide.",
    }
    for name, tensor in head.items():
        if name.startswith("networks."):
            _, row, matrix, _ = name.split(".")
            index = {"input": 0, "output": 2}[matrix]
            tensors[f"d_base.model.layers.{row}.bias_proj.{index}.weight"] = tensor
        else:
            (prefix,) = (one for one in public if name.startswith(one))
            tensors[name.replace(prefix, public[prefix])] = tensor
    directory.mkdir()
    torch.save(tensors, directory / "pytorch_model.bin")
    content = {
        "drafter": str(base),
        "verifier": "some/verifier",
        "guide_method": kind.variant,
        "v_layer": [3, 4, 5],
        "d_layer": "all",
        **settings,
    }
    (directory / "config.json").write_text(json.dumps(content))
    return directory


def run_steered(model: Decoder, head: SteeringHead) -> Tensor:
    install_steering(model, head).follow(torch.ones(1, 24))
    hidden: Tensor = model(TOKENS, CausalContext(len(TOKENS)))
    return hidden


@pytest.mark.parametrize("kind", HEADS.values())
def test_a_published_checkpoint_is_the_same_model(tmp_path: Path, kind: type[SteeringHead]) -> None:
    """Catches a wrapped layer that is not unwrapped, and tensors of the head under wrong names."""
    ours = our_layout(tmp_path / "ours", kind)
    base = write_checkpoint(tmp_path / "base", LLAMA2, seed=99)
    public = public_layout(tmp_path / "public", base, kind)
    converted = steered_directory(public, cache_dir=tmp_path / "cache")
    states = [
        run_steered(load_decoder(directory, LLAMA2, dtype=torch.float32), load_steering(directory))
        for directory in (ours, converted)
    ]
    assert torch.equal(states[0], states[1])
    assert steered_directory(public, cache_dir=tmp_path / "cache") == converted
    assert steered_directory(converted) == converted


def test_some_layers_of_a_published_drafter_may_be_steered(tmp_path: Path) -> None:
    """Catches rows of W_s that are given to other layers than those of d_layer."""
    base = write_checkpoint(tmp_path / "base", LLAMA2)
    public = public_layout(tmp_path / "public", base, d_layer=[2, 0])
    file = public / "pytorch_model.bin"
    tensors = torch.load(file, weights_only=True)
    name = "latent_mod_prep.w_guide.weight"
    tensors[name] = tensors[name][: 2 * LLAMA2.intermediate_size].clone()
    torch.save(tensors, file)
    head = load_steering(steered_directory(public, cache_dir=tmp_path / "cache"))
    assert head.shape.layers == (2, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("latent_mod_prep.norm.bias"), r"latent_mod_prep\.norm\.bias .* is missing"),
        (cut("guidance_embd_layer.orig.weight"), r"orig\.weight has shape \[23, 72\]"),
        (drop("guidance_embd_layer.orig.bias"), r"orig\.bias is missing"),
        (add("eagle.fc"), r"eagle\.fc belongs to neither"),
    ],
)
def test_wrong_published_tensors_are_named_as_published(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    """Catches a sentence about names that the user's file does not have."""
    base = write_checkpoint(tmp_path / "base", LLAMA2)
    public = public_layout(tmp_path / "public", base)
    file = public / "pytorch_model.bin"
    tensors = torch.load(file, weights_only=True)
    change(tensors)
    torch.save(tensors, file)
    with pytest.raises(ValueError, match=message):
        steered_directory(public, cache_dir=tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache" / "steered").iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guide_method": "elmnt_wise"}, "guide_method='elmnt_wise' is not supported"),
        ({"v_layer": 10}, "v_layer must be three ascending layers, not 10"),
        ({"v_layer": [5, 4, 3]}, "v_layer must be three ascending layers"),
        ({"d_layer": [3]}, "drafter layers from 0 to 2"),
        ({"drafter": None}, "drafter must be a model's name"),
    ],
)
def test_wrong_published_settings_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Catches a default that is put in place of what the file does not say."""
    base = write_checkpoint(tmp_path / "base", LLAMA2)
    public = public_layout(tmp_path / "public", base, **change)
    with pytest.raises(ValueError, match=message):
        steered_directory(public, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", b"no tensors at all", b"\x80\x04K\x01."])
def test_a_broken_published_file_is_told_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    """Catches a traceback, and code that runs while a file is read."""
    base = write_checkpoint(tmp_path / "base", LLAMA2)
    public = public_layout(tmp_path / "public", base)
    (public / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        steered_directory(public, cache_dir=tmp_path / "cache")
