"""Weight files: sharded reading gives the whole, and every fault is one sentence that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.registry import shard_decoder
from engine.weights import load_model
from parallel.mesh import Mesh
from tests.support.tiny import (
    LLAMA33,
    QWEN3,
    SMOLLM,
    load_decoder,
    random_tensors,
    write_checkpoint,
    write_tensors,
)

GATE = "model.layers.1.mlp.gate_proj.weight"


def load(directory: Path, mesh: Mesh | None = None) -> Decoder:
    return load_model(
        str(directory), dtype=torch.float32, mesh=mesh or Mesh.single(), max_model_len=64
    )


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A Llama checkpoint whose tensors were changed on the way to disk."""
    write_checkpoint(directory, LLAMA33)
    tensors = random_tensors(LLAMA33)
    change(tensors)
    write_tensors(directory, tensors)
    return directory


@pytest.mark.parametrize("config", [SMOLLM, LLAMA33, QWEN3], ids=["smollm", "llama33", "qwen3"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (2, 1), (2, 3)])
def test_reading_slices_equals_slicing_the_whole(
    config: object, tp: int, pp: int, tmp_path: Path
) -> None:
    """Catches a run taken from the wrong piece of a merged weight."""
    assert isinstance(config, type(SMOLLM))
    directory = write_checkpoint(tmp_path, config, num_files=3)
    for rank in range(tp * pp):
        mesh = Mesh(tp_rank=rank % tp, tp_size=tp, stage=rank // tp, num_stages=pp)
        whole = load_decoder(directory, config, dtype=torch.float32)
        shard_decoder(whole, mesh)
        part = load_decoder(directory, config, dtype=torch.float32, mesh=mesh)
        expected = dict(whole.named_parameters(remove_duplicate=False))
        found = dict(part.named_parameters(remove_duplicate=False))
        assert expected.keys() == found.keys()
        for name, parameter in found.items():
            assert torch.equal(parameter, expected[name]), name
            assert parameter.is_contiguous()


def test_one_file_and_several_hold_the_same_model(tmp_path: Path) -> None:
    one = load(write_checkpoint(tmp_path / "one", LLAMA33))
    several = load(write_checkpoint(tmp_path / "several", LLAMA33, num_files=4))
    for (name, a), (_, b) in zip(one.named_parameters(), several.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_tied_head_is_the_embedding_and_may_be_absent_or_stored_twice(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, SMOLLM)
    tensors = random_tensors(SMOLLM)
    assert "lm_head.weight" not in tensors
    names = dict(load(directory).named_parameters(remove_duplicate=False))
    assert names["head.weight"] is names["embed.weight"]
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    write_tensors(directory, tensors)
    load(directory)


def test_a_tied_head_on_the_last_stage_is_read_from_the_embedding(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, SMOLLM)
    last = load(directory, Mesh(tp_rank=0, tp_size=1, stage=1, num_stages=2))
    embedding = random_tensors(SMOLLM)["model.embed_tokens.weight"]
    assert torch.equal(last.get_parameter("head.weight"), embedding)


def test_a_stage_ignores_faults_in_other_stages_layers(tmp_path: Path) -> None:
    """Each stage opens only what it keeps, so that a stage's node needs only its files."""
    directory = rewrite(tmp_path, lambda tensors: tensors.pop(GATE))
    load(directory, Mesh(tp_rank=0, tp_size=1, stage=0, num_stages=3))
    with pytest.raises(ValueError, match=GATE):
        load(directory, Mesh(tp_rank=0, tp_size=1, stage=1, num_stages=3))


def test_old_rotary_tables_are_ignored(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load(rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(4)})))


def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.pop(GATE))
    with pytest.raises(ValueError, match=rf"tensor {GATE} of shape \[44, 48\] is missing"):
        load(directory)


def test_a_missing_untied_head_is_named(tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"lm_head.weight of shape \[259, 48\] is missing"):
        load(directory)


def test_a_superfluous_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    directory = rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(48)}))
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor {name} has no place"):
        load(directory)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    directory = rewrite(tmp_path, lambda tensors: tensors.update({GATE: torch.ones(43, 48)}))
    with pytest.raises(ValueError, match=rf"{GATE} has shape \[43, 48\], but .* \[44, 48\]"):
        load(directory)


def test_a_quantised_tensor_is_refused(tmp_path: Path) -> None:
    int8 = torch.ones(44, 48, dtype=torch.int8)
    directory = rewrite(tmp_path, lambda tensors: tensors.update({GATE: int8}))
    with pytest.raises(ValueError, match=rf"{GATE} is stored as I8: allowed are F64, F32"):
        load(directory)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path, LLAMA33) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        load(tmp_path)


def test_an_index_that_names_a_missing_file_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA33, num_files=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json places tensor .* in model-00002-of-00002"):
        load(tmp_path)


def test_an_index_that_places_a_tensor_wrongly_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA33, num_files=2)
    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    wrong = "model-00001-of-00002.safetensors"
    index["weight_map"] = dict.fromkeys(index["weight_map"], wrong)
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"{wrong}: tensor .* of shape .* cannot be read"):
        load(tmp_path)


def test_an_index_that_is_no_index_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA33, num_files=2)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ValueError, match=r"index\.json is not a JSON object with a weight_map"):
        load(tmp_path)


def test_a_directory_without_weights_is_named(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, LLAMA33) / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds neither model\.safetensors nor"):
        load(tmp_path)


def test_a_length_beyond_the_models_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, replace(LLAMA33, max_position_embeddings=63))
    with pytest.raises(ValueError, match=r"max_model_len=64 is out of range .* 1 to 63"):
        load(directory)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_is_a_cast_of_the_same_stored_weights(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    decoder = load_decoder(write_checkpoint(tmp_path, SMOLLM), SMOLLM, dtype=dtype)
    stored = random_tensors(SMOLLM)["model.layers.0.mlp.down_proj.weight"]
    weight = decoder.get_parameter("layers.0.mlp.down.weight")
    assert weight.dtype == dtype
    assert torch.equal(weight, stored.to(dtype))
