"""EAGLE-3 weight files: written ones load unchanged, and every fault is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafters.eagle3_checkpoint import load_eagle3, load_eagle3_projection, save_eagle3
from drafters.eagle3_head import Eagle3Head
from engine.models.packed import can_pack
from engine.weights import read_model_config
from tests.support.eagle3_reference import (
    ReferenceHead,
    write_raw,
    write_specforge,
    write_speculators,
)
from tests.support.tiny import LLAMA2, random_tensors, write_checkpoint

VERIFIER = replace(LLAMA2, num_layers=8)
GATE = "midlayer.mlp.gate_proj.weight"
WIDE = ReferenceHead(hidden=24, head_dim=6, own_embedding=True, fc_norm=True)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("verifier"), VERIFIER)


def load(directory: Path, verifier: Path, dtype: torch.dtype = torch.float64) -> Eagle3Head:
    return load_eagle3(directory, verifier, dtype=dtype)


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A SpecForge head whose tensors were changed on the way to disk."""
    head = ReferenceHead()
    tensors = dict(head.tensors)
    write_specforge(directory, head)
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_raw(path, WIDE, target_hidden_size=32, fc_norm=True),
        lambda path: write_specforge(path, ReferenceHead(head_dim=12), rope_theta=3e5),
        lambda path: write_speculators(
            path, ReferenceHead(), {}, norm_output=True, norm_before_residual=True
        ),
        lambda path: write_specforge(path, ReferenceHead(draft_vocab_size=259)),
    ],
    ids=["raw", "specforge", "speculators", "whole vocabulary"],
)
def test_a_saved_head_loads_unchanged(
    write: Callable[[Path], Path], verifier: Path, tmp_path: Path
) -> None:
    """Catches a merged matrix split in the wrong place and a switch that is not written."""
    first = load(write(tmp_path / "a"), verifier)
    save_eagle3(first, tmp_path / "b")
    second = load(tmp_path / "b", verifier)
    assert second.config == first.config
    assert torch.equal(second.vocabulary.target_ids, first.vocabulary.target_ids)
    parameters = dict(second.named_parameters())
    assert len(parameters) == len(dict(first.named_parameters()))
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, parameters[name]), name


def test_a_saved_head_has_the_names_that_sglang_asks_for(verifier: Path, tmp_path: Path) -> None:
    """The tensors of the original file, byte for byte, the verifier's embedding not among them."""
    reference = ReferenceHead()
    save_eagle3(load(write_raw(tmp_path / "a", reference), verifier), tmp_path / "b")
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert saved.keys() == reference.tensors.keys()
    for name, tensor in reference.tensors.items():
        assert torch.equal(saved[name], tensor), name
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]


def test_a_head_without_embedding_gets_the_verifiers(verifier: Path, tmp_path: Path) -> None:
    head = load(write_raw(tmp_path, ReferenceHead()), verifier)
    expected = random_tensors(VERIFIER)["model.embed_tokens.weight"].double()
    assert torch.equal(head.embed.weight, expected)
    assert not head.config.has_embedding


def test_a_heads_own_embedding_comes_first(verifier: Path, tmp_path: Path) -> None:
    reference = ReferenceHead(own_embedding=True)
    head = load(write_specforge(tmp_path, reference), verifier)
    assert torch.equal(head.embed.weight, reference.tensors["embed_tokens.weight"])


def test_a_head_of_the_whole_vocabulary_needs_no_map(verifier: Path, tmp_path: Path) -> None:
    """SafeAILab drops both maps when the vocabularies are equal."""
    reference = ReferenceHead(draft_vocab_size=259)
    for name in ("d2t", "t2d"):
        reference.tensors.pop(name)
    head = load(write_raw(tmp_path, reference), verifier)
    assert head.vocabulary.target_ids.tolist() == list(range(259))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_is_a_cast_of_the_stored_weights(
    dtype: torch.dtype, verifier: Path, tmp_path: Path
) -> None:
    reference = ReferenceHead()
    head = load(write_specforge(tmp_path, reference), verifier, dtype)
    assert {parameter.dtype for parameter in head.parameters()} == {dtype}
    assert torch.equal(head.fc.weight, reference.tensors["fc.weight"].to(dtype))


def test_a_rank_that_does_not_draft_reads_the_projection_alone(
    verifier: Path, tmp_path: Path
) -> None:
    directory = write_raw(tmp_path, WIDE, target_hidden_size=32, fc_norm=True)
    config = read_model_config(verifier)
    alone = load_eagle3_projection(directory, config, dtype=torch.float64)
    whole = load(directory, verifier).projection(torch.float64)
    states = torch.randn(5, 32, dtype=torch.float64)
    assert alone.taps == whole.taps
    assert alone.num_features == 24
    for tap in range(3):
        assert torch.equal(alone.partial({tap: states}), whole.partial({tap: states}))


def test_prepared_for_inference_a_head_computes_the_same(verifier: Path, tmp_path: Path) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this CPU or this build of PyTorch does not pack float32")
    directory = write_specforge(tmp_path, ReferenceHead())
    plain, packed = (load(directory, verifier, torch.float32) for _ in range(2))
    packed.prepare_for_inference()
    features, tokens, positions = torch.randn(3, 32), torch.arange(3), torch.arange(3)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query + (key + value).repeat_interleave(2, dim=1)

    expected = plain.logits(plain(features, tokens, positions, attend))
    found = packed.logits(packed(features, tokens, positions, attend))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert packed.projection(torch.float32).num_features == 32
    assert {type(packed.midlayer.qkv).__name__, type(packed.lm_head).__name__} == {"PackedLinear"}


def test_a_missing_tensor_is_named_with_its_shape(verifier: Path, tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.pop(GATE))
    with pytest.raises(ValueError, match=rf"tensor {GATE} of shape \[20, 32\] is missing"):
        load(directory, verifier)


@pytest.mark.parametrize("name", ["fc.bias", "layers.1.mlp.gate_proj.weight", "input_norm.weight"])
def test_a_superfluous_tensor_is_named(name: str, verifier: Path, tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(32)}))
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor {name} has no place"):
        load(directory, verifier)


def test_a_misshapen_tensor_is_named_with_both_shapes(verifier: Path, tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.update({GATE: torch.ones(19, 32)}))
    with pytest.raises(ValueError, match=rf"{GATE} has shape \[19, 32\], but .* \[20, 32\]"):
        load(directory, verifier)


def test_a_quantised_tensor_is_refused(verifier: Path, tmp_path: Path) -> None:
    int8 = torch.ones(20, 32, dtype=torch.int8)
    directory = rewrite(tmp_path, lambda tensors: tensors.update({GATE: int8}))
    with pytest.raises(ValueError, match=rf"{GATE} is stored as torch.int8: allowed are unquant"):
        load(directory, verifier)


def test_a_map_that_leaves_the_vocabulary_is_refused(verifier: Path, tmp_path: Path) -> None:
    """What a d2t of token ids, not offsets, runs into."""
    offsets = torch.arange(40) + 230
    directory = rewrite(tmp_path, lambda tensors: tensors.update({"d2t": offsets}))
    with pytest.raises(ValueError, match=r"safetensors: tensor d2t: draft id 15 means token 260"):
        load(directory, verifier)


def test_maps_that_contradict_each_other_are_refused(verifier: Path, tmp_path: Path) -> None:
    mask = torch.ones(259, dtype=torch.bool)
    directory = rewrite(tmp_path, lambda tensors: tensors.update({"t2d": mask}))
    with pytest.raises(ValueError, match="tensor t2d names other tokens than tensor d2t"):
        load(directory, verifier)


def test_a_smaller_vocabulary_without_map_is_refused(verifier: Path, tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.pop("d2t"))
    with pytest.raises(ValueError, match=r"tensor d2t of shape \[40\] is missing"):
        load(directory, verifier)


def test_another_width_needs_an_embedding(verifier: Path, tmp_path: Path) -> None:
    narrow = ReferenceHead(hidden=24, head_dim=6)
    directory = write_raw(tmp_path, narrow, target_hidden_size=32)
    message = r"embed_tokens.weight of shape \[259, 24\] is missing: the verifier's .* 32 wide"
    with pytest.raises(ValueError, match=message):
        load(directory, verifier)


@pytest.mark.parametrize("layout", [write_raw, write_specforge])
def test_a_file_that_was_cut_off_is_named(
    layout: Callable[[Path, ReferenceHead], Path], verifier: Path, tmp_path: Path
) -> None:
    directory = layout(tmp_path, ReferenceHead())
    (file,) = (path for path in directory.iterdir() if path.name != "config.json")
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(ValueError, match=rf"{file.name} is not a whole"):
        load(directory, verifier)


@pytest.mark.parametrize("content", [{"a": 1}, [torch.ones(2)]], ids=["numbers", "list"])
def test_a_pickle_of_something_else_is_refused(
    content: object, verifier: Path, tmp_path: Path
) -> None:
    directory = write_raw(tmp_path, ReferenceHead())
    torch.save(content, directory / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin must hold tensors by name"):
        load(directory, verifier)


def test_a_pickle_that_would_run_code_is_refused(verifier: Path, tmp_path: Path) -> None:
    directory = write_raw(tmp_path, ReferenceHead())
    torch.save({"a": Path("x")}, directory / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is not a whole file of tensors"):
        load(directory, verifier)


def test_a_directory_without_weights_is_named(verifier: Path, tmp_path: Path) -> None:
    directory = write_raw(tmp_path, ReferenceHead())
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match=r"holds none of model\.safetensors, .* pytorch_model"):
        load(directory, verifier)


def test_an_index_that_names_a_missing_file_is_named(verifier: Path, tmp_path: Path) -> None:
    directory = write_speculators(tmp_path, ReferenceHead(), {})
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json places tensors in model-00002-of-00002"):
        load(directory, verifier)
