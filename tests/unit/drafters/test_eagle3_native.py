"""A head that was prepared for inference proposes what the plain one does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drafters.draft_tree import ChainShape
from drafters.eagle3 import Eagle3Drafter
from drafters.eagle3_config import Eagle3Config
from drafters.eagle3_head import Eagle3Head
from drafters.vocabulary import DraftVocabulary
from engine.native.parts import can_nativize
from tests.support.steered import view
from tests.support.tiny import LLAMA33

WIDE = replace(
    LLAMA33, num_layers=1, hidden_size=64, intermediate_size=96, tie_word_embeddings=False
)


def head() -> Eagle3Head:
    config = Eagle3Config(layer=WIDE, draft_vocab_size=50, target_hidden_size=64, taps=(1, 2))
    vocabulary = DraftVocabulary.most_frequent(torch.arange(WIDE.vocab_size), 50)
    made = Eagle3Head(config, vocabulary, dtype=torch.float32, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(2)
    made.initialise(generator, std=0.2)
    torch.nn.init.normal_(made.embed.weight, generator=generator)
    return made.eval()


@pytest.mark.skipif(not can_nativize(64, torch.float32), reason="no native kernels here")
@pytest.mark.parametrize("min_probability", [0.0, 0.02])
def test_native_kernels_draft_the_same_chain(min_probability: float) -> None:
    shape = ChainShape(num_tokens=6, min_probability=min_probability)
    plain, fast = Eagle3Drafter(head(), shape), Eagle3Drafter(_prepared(), shape)
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(WIDE.vocab_size, (30,), generator=generator).tolist()
    features = torch.randn(29, 64, generator=generator)
    for length in (5, 6, 12, 30):
        here = view(tokens[:length], features=features[: length - 1])
        assert fast.draft(here) == plain.draft(here)


def _prepared() -> Eagle3Head:
    made = head()
    made.prepare_for_inference()
    return made
