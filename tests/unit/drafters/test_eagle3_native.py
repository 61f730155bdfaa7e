"""A head that was prepared for inference proposes what the plain one does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from drafters.draft_tree import ChainShape
from drafters.eagle3 import Eagle3Drafter
from drafters.eagle3_chain import HeadState, Pairs, TorchChain
from drafters.eagle3_config import Eagle3Config
from drafters.eagle3_head import Eagle3Head
from drafters.eagle3_native import NativeEagle3, can_nativize
from drafters.vocabulary import DraftVocabulary
from tests.support.steered import view
from tests.support.tiny import LLAMA33

WIDE = replace(
    LLAMA33,
    num_layers=1,
    hidden_size=64,
    intermediate_size=96,
    head_dim=32,
    tie_word_embeddings=False,
)


def head(**config: Any) -> Eagle3Head:
    made_of = Eagle3Config(
        layer=WIDE, draft_vocab_size=50, target_hidden_size=64, taps=(1, 2), **config
    )
    vocabulary = DraftVocabulary.most_frequent(torch.arange(WIDE.vocab_size), 50)
    made = Eagle3Head(made_of, vocabulary, dtype=torch.float32, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(2)
    made.initialise(generator, std=0.2)
    torch.nn.init.normal_(made.embed.weight, generator=generator)
    for norm in (made.norm, made.midlayer.input_norm, made.midlayer.hidden_norm):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5, generator=generator)
    return made.eval()


needs_kernels = pytest.mark.skipif(not can_nativize(head()), reason="no native kernels here")


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("min_probability", [0.0, 0.02])
@pytest.mark.parametrize(
    "config", [{}, {"norm_before_residual": True}, {"norm_feedback": True}], ids=str
)
def test_native_kernels_draft_the_same_chain(
    config: dict[str, bool], min_probability: float, threads: int
) -> None:
    """Prompts of many pairs, of one, repeated, and longer than a block of keys and a chunk."""
    shape = ChainShape(num_tokens=6, min_probability=min_probability)
    made = head(**config)
    plain, fast = Eagle3Drafter(made, shape), Eagle3Drafter(made, shape, NativeEagle3(made))
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(WIDE.vocab_size, (700,), generator=generator).tolist()
    features = torch.randn(699, 64, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    lengths = []
    for length in (5, 6, 12, 12, 130, 131, 700):
        here = view(tokens[:length], features=features[: length - 1])
        draft = fast.draft(here)
        assert draft == plain.draft(here)
        lengths.append(sum(map(len, draft.candidates)))
    torch.set_num_threads(before)
    assert max(lengths) == 6 if min_probability == 0.0 else 0 < max(lengths) < 6


@needs_kernels
def test_native_and_torch_write_the_same_cache() -> None:
    made = head()
    features, tokens = torch.randn(200, 64, generator=torch.Generator().manual_seed(1)), range(200)
    found = []
    for chain in (TorchChain(made), NativeEagle3(made)):
        state = HeadState.empty(made)
        with torch.inference_mode():
            chain.draft(state, Pairs(features, tuple(tokens)), ChainShape(num_tokens=2))
        assert (state.num_pairs, state.newest_token) == (200, 199)
        found.append((state.newest, *(one[:, :201] for one in state.cache.reserve(201))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
