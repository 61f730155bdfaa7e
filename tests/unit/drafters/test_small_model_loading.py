"""The small-model drafter from files: kernels, precisions, vocabularies of another size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drafters.draft_tree import ChainShape, TreeShape
from drafters.small_model import DraftSettings, Verifier, load_small_model
from engine.native import native_available
from tests.support.reference import greedy_decode
from tests.support.steered import view
from tests.support.tiny import LLAMA2, QWEN3, SMOLLM, write_checkpoint

PROMPT = (5, 17, 3, 42, 5, 17, 9, 30, 2, 11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [ChainShape(num_tokens=4), TreeShape(depth=2, top_k=3)])
def test_a_checkpoint_is_loaded_and_drafts(
    tmp_path: Path, dtype: torch.dtype, shape: ChainShape | TreeShape
) -> None:
    """Every kernel path drafts from real files; in fp64 the very tokens of the model itself."""
    directory = write_checkpoint(tmp_path / "drafter", QWEN3, seed=4)
    settings = DraftSettings(shape=shape, dtype=dtype, max_model_len=10**6)
    verifier = Verifier(directory=directory, vocab_size=QWEN3.vocab_size)
    drafter = load_small_model(str(directory), settings, verifier=verifier)
    draft = drafter.draft(view(PROMPT))
    assert max(map(len, draft.candidates)) == (4 if isinstance(shape, ChainShape) else 2)
    if dtype == torch.float64 and isinstance(shape, ChainShape):
        exact = load_small_model(
            str(directory), replace(settings, kernels="torch"), verifier=verifier
        )
        model = exact._cached.model
        assert draft.candidates == (greedy_decode(model, PROMPT, 4),)


WIDE = replace(QWEN3, hidden_size=64, head_dim=64, num_heads=2, num_kv_heads=1)
"""Sizes that native kernels take whatever their vector width."""


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "shape", [ChainShape(num_tokens=5), TreeShape(total_nodes=9, depth=3, top_k=3)]
)
def test_native_kernels_draft_what_plain_torch_drafts(
    tmp_path: Path, shape: ChainShape | TreeShape, *, tied: bool
) -> None:
    """Catches a cut head, scratch rows or a tree that the fused kernels read differently."""
    if not native_available():
        pytest.skip("needs a C++ compiler")
    config = replace(WIDE, tie_word_embeddings=tied)
    directory = write_checkpoint(tmp_path / "drafter", config, seed=3)
    verifier = Verifier(directory=directory, vocab_size=200)
    drafts = []
    for kernels in ("native", "torch"):
        settings = DraftSettings(shape=shape, dtype=torch.float32, kernels=kernels)
        drafter = load_small_model(
            str(directory), replace(settings, max_model_len=256), verifier=verifier
        )
        first = drafter.draft(view(PROMPT)).candidates
        longer = (*PROMPT, *first[0][:2], 33, 34)
        drafts.append((first, drafter.draft(view(longer)).candidates))
    assert drafts[0] == drafts[1]


def test_loading_drafts_no_id_of_the_drafters_padding(tmp_path: Path) -> None:
    """A padded vocabulary is accepted, in either direction, and its padding never drafted."""
    padded = replace(SMOLLM, vocab_size=SMOLLM.vocab_size + 13)
    directory = write_checkpoint(tmp_path / "drafter", padded)
    verifier = Verifier(directory=directory, vocab_size=SMOLLM.vocab_size)
    settings = DraftSettings(dtype=torch.float32, shape=ChainShape(num_tokens=3))
    drafter = load_small_model(str(directory), settings, verifier=verifier)
    model = drafter._cached.model
    hidden_RH = torch.randn(2, padded.hidden_size)
    assert model.logits(hidden_RH).shape == (2, SMOLLM.vocab_size)
    assert drafter._cached.can_read([padded.vocab_size - 1])


def test_permuted_ids_are_refused_with_the_first_difference(tmp_path: Path) -> None:
    """Catches a drafter whose every draft would silently be wrong."""
    verifier = write_checkpoint(tmp_path / "verifier", LLAMA2)
    drafter = write_checkpoint(tmp_path / "drafter", LLAMA2)
    file = drafter / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = (next(t for t, i in vocabulary.items() if i == at) for at in (7, 20))
    vocabulary[first], vocabulary[second] = 20, 7
    file.write_text(json.dumps(content))
    settings = DraftSettings(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"id 7 is '5' in the drafter but '\(' in the verifier"):
        load_small_model(
            str(drafter),
            settings,
            verifier=Verifier(directory=verifier, vocab_size=LLAMA2.vocab_size),
        )
