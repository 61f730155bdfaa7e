"""A drafter behind a failing link: whatever is lost, late, damaged or killed, no token changes."""

from __future__ import annotations

import pytest
import torch

from engine.features import FeatureProjection
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, MAX_TOKENS, probe, repetitive_prompts
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.reference import greedy_decode
from tests.support.toy_drafter import ToyDrafter
from tests.support.unreliable import unreliable


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in repetitive_prompts(4)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["eagle3", "switch_sd", "copy_spec"])
def test_faults_cost_drafts_never_tokens(
    truth: list[tuple[int, ...]], method: str, seed: int
) -> None:
    hidden = CONFIG.hidden_size
    projection = FeatureProjection(
        taps=(1, 2), weights=tuple(torch.eye(3, hidden, dtype=torch.float64) for _ in range(2))
    )
    vocab_size = CONFIG.vocab_size
    with unreliable(
        seed, lambda: ToyDrafter(vocab_size=vocab_size), vocab_size=vocab_size
    ) as drafter:
        tiny = TinyEngine(
            config=CONFIG,
            speculation=speculation(method, drafter="eagle3"),
            probe=probe(),
            drafter=drafter,
            projection=projection,
        )
        engine = build_engine(tiny, Mesh.single())
        for batch in (1, 4, 4):
            prompts = repetitive_prompts(4)[:batch]
            assert answers(engine, prompts, max_tokens=MAX_TOKENS) == truth[:batch]
        counters = drafter.counters
        assert counters.asked + counters.unavailable > 0
        assert counters.answered + counters.missed <= counters.asked
