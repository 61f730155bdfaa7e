"""Medusa heads on disk: ours come back unchanged, published ones load, faults are one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.medusa_checkpoint import (
    check_medusa,
    load_medusa,
    load_medusa_projection,
    load_tree,
    save_medusa,
)
from drafters.medusa_heads import MedusaConfig, MedusaHeads
from drafters.static_tree import likeliest_tree
from drafters.vocabulary import DraftVocabulary
from tests.support.tiny import LLAMA2, write_checkpoint

HIDDEN, VOCAB = LLAMA2.hidden_size, LLAMA2.vocab_size
TREE = likeliest_tree([[0.5, 0.25, 0.125], [0.375, 0.25, 0.125]], 7)
BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("verifier"), LLAMA2)


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator)


def ours(directory: Path) -> Path:
    """Two heads over a hundred tokens, in our layout."""
    vocabulary = DraftVocabulary.most_frequent(random(VOCAB), 100)
    config = MedusaConfig(
        num_heads=2, hidden_size=HIDDEN, vocab_size=VOCAB, draft_vocab_size=vocabulary.size
    )
    heads = MedusaHeads(config, vocabulary, dtype=BF16, device=torch.device("cpu"))
    heads.weight.data.copy_(random(2, HIDDEN, HIDDEN))
    heads.bias.data.copy_(random(2, HIDDEN))
    save_medusa(heads, TREE, directory)
    return directory


def published(directory: Path, *, prefix: str = "", file: str = "medusa_lm_head.pt") -> Path:
    """Three heads as FasterDecoding publishes them, whose config.json counts two."""
    tensors = {}
    for head in range(3):
        tensors[f"{prefix}{head}.0.linear.weight"] = random(HIDDEN, HIDDEN) + head
        tensors[f"{prefix}{head}.0.linear.bias"] = random(HIDDEN) + head
        tensors[f"{prefix}{head}.1.weight"] = random(VOCAB, HIDDEN) + head
    directory.mkdir(parents=True, exist_ok=True)
    if file.endswith(".pt"):
        torch.save(tensors, directory / file)
    else:
        save_file(tensors, directory / file)
    fields = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x/y"}
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def edit(directory: Path, **fields: Any) -> Path:
    """Change keys of config.json."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return directory


def test_saved_heads_load_unchanged_over_the_verifiers_projection(
    verifier: Path, tmp_path: Path
) -> None:
    heads = load_medusa(ours(tmp_path), verifier, dtype=BF16)
    assert heads.config.shares_projection
    assert torch.equal(heads.weight, random(2, HIDDEN, HIDDEN).to(BF16))
    assert torch.equal(heads.bias, random(2, HIDDEN).to(BF16))
    assert not any(parameter.requires_grad for parameter in heads.parameters())
    expected = DraftVocabulary.most_frequent(random(VOCAB), 100)
    assert torch.equal(heads.vocabulary.target_ids, expected.target_ids)
    assert load_tree(tmp_path, num_heads=2) == TREE
    assert not (tmp_path / "model.safetensors").stat().st_size > 3 * HIDDEN * HIDDEN * 2 + 10_000


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_published_heads_load_with_projections_of_their_own(
    prefix: str, file: str, verifier: Path, tmp_path: Path
) -> None:
    """Heads are counted in the file: published configurations are wrong about them."""
    heads = load_medusa(published(tmp_path, prefix=prefix, file=file), verifier, dtype=BF16)
    assert (heads.config.num_heads, heads.config.shares_projection) == (3, False)
    assert torch.equal(heads.weight[2], (random(HIDDEN, HIDDEN) + 2).to(BF16))
    assert torch.equal(heads.projection(1), (random(VOCAB, HIDDEN) + 1).to(BF16))
    tree = load_tree(tmp_path, num_heads=3)
    assert (tree.depth, tree.accuracies) == (3, ())


def test_the_verifiers_pass_reads_the_last_state_behind_the_final_norm(verifier: Path) -> None:
    projection = load_medusa_projection(verifier, dtype=torch.float64)
    assert projection.taps == (LLAMA2.num_layers,)
    assert projection.num_features == HIDDEN
    assert projection.norm.eps == LLAMA2.rms_norm_eps
    hidden = random(3, HIDDEN).double()
    scale = (hidden.square().mean(-1, keepdim=True) + LLAMA2.rms_norm_eps).rsqrt()
    expected = hidden * scale * projection.norm.weight
    torch.testing.assert_close(projection.partial({0: hidden}), expected)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"medusa_num_layers": 2}, "medusa_num_layers=2 is not supported: allowed is 1"),
        ({"hidden_size": 8}, "hidden_size is 8, but the verifier's is 32"),
        ({"vocab_size": 5}, "vocab_size is 5, but the verifier's is 259"),
        ({"draft_vocab_size": 300}, "draft_vocab_size must be from 1 to the verifier's 259"),
        ({"medusa_choices": [[0, 0]]}, "medusa_choices or medusa_head_accuracies"),
        ({"medusa_choices": 3}, "medusa_choices or medusa_head_accuracies"),
        ({"medusa_head_accuracies": [[0.1]]}, "no accuracies for the tree's node"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(
    fields: dict[str, Any], sentence: str, verifier: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_medusa(edit(ours(tmp_path), **fields), verifier)


def test_wrong_tensors_are_one_sentence(verifier: Path, tmp_path: Path) -> None:
    directory = edit(ours(tmp_path / "a"), draft_vocab_size=90)
    with pytest.raises(ValueError, match=r"d2t has shape \[100\].* asks for \[90\]"):
        load_medusa(directory, verifier, dtype=BF16)
    torch.save({"0.2.weight": random(2, 2)}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds no Medusa heads: .* there is 0\.2\.weight"):
        check_medusa(tmp_path, verifier)
    narrow = write_checkpoint(tmp_path / "narrow", replace(LLAMA2, hidden_size=16, head_dim=4))
    with pytest.raises(ValueError, match=r"0\.0\.linear\.weight has shape \[32, 32\]"):
        load_medusa(published(tmp_path / "b"), narrow, dtype=BF16)
    (tmp_path / "b" / "medusa_lm_head.pt").unlink()
    with pytest.raises(ValueError, match=r"holds none of model\.safetensors"):
        check_medusa(tmp_path / "b", verifier)
