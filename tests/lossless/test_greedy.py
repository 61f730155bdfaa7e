"""Greedy output equals plain decoding, token for token in fp64, whoever drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from engine.attention.masked import MaskedAttention
from engine.attention.rowwise import RowwiseAttention
from engine.interfaces import Site
from engine.methods import METHODS, NEURAL_METHODS
from engine.models.config import ModelConfig
from engine.probe import Probe
from engine.speculation import SpeculationConfig, speculation
from parallel.mesh import Mesh
from tests.support.adversaries import Adversary
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.gates import gate
from tests.support.reference import greedy_decode

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=29,
    hidden_size=36,
    intermediate_size=40,
    num_layers=3,
    num_heads=9,
    num_kv_heads=3,
    head_dim=4,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=False,
    max_position_embeddings=512,
    eos_token_ids=(),
)
MAX_TOKENS = 40
NEED_A_DRAFTER = (*NEURAL_METHODS, "rasd")
"""Their tests are in test_neural.py."""


def repetitive_prompts(count: int, seed: int = 3) -> list[tuple[int, ...]]:
    """Prompts that repeat themselves, so that copying always finds something."""
    source = random.Random(seed)
    phrases = [tuple(source.randrange(29) for _ in range(8)) for _ in range(count)]
    return [phrase * 3 + phrase[: 2 + index] for index, phrase in enumerate(phrases)]


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in repetitive_prompts(4)]


def probe(layer: int = 1) -> Probe:
    """A probe with random weights: its gate opens at some steps and not at others."""
    generator = torch.Generator().manual_seed(5)
    return Probe(
        weight=torch.randn(36, generator=generator),
        threshold=0.5,
        layer=layer,
        site=Site.ATTENTION,
        model_id="tiny",
    )


def check(tiny: TinyEngine, truth: Sequence[tuple[int, ...]], batch: int) -> None:
    """Answer ``batch`` prompts together and compare every token."""
    engine = build_engine(tiny, Mesh.single())
    assert answers(engine, repetitive_prompts(4)[:batch], max_tokens=MAX_TOKENS) == truth[:batch]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("method", [m for m in METHODS if m not in NEED_A_DRAFTER])
def test_every_method_equals_plain_decoding(
    truth: list[tuple[int, ...]], method: str, batch: int
) -> None:
    """Catches any error in layout, masks, commit or acceptance that changes a token."""
    tiny = TinyEngine(config=CONFIG, speculation=speculation(method), probe=probe(), gate=gate())
    check(tiny, truth, batch)


@pytest.mark.parametrize("match_length", [1, 2, 5])
@pytest.mark.parametrize(("candidates", "tokens"), [(1, 1), (1, 20), (10, 20), (4, 7), (10, 1)])
def test_every_copy_shape_equals_plain_decoding(
    truth: list[tuple[int, ...]], match_length: int, candidates: int, tokens: int
) -> None:
    """Catches an error that only wide or only deep tries show."""
    config = SpeculationConfig(
        copy_match_length=match_length,
        copy_max_candidates=candidates,
        copy_max_tokens=tokens,
        probe_threshold=0.0,
        row_budget="full",
    )
    check(TinyEngine(config=CONFIG, speculation=config), truth, 3)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", ["right", "wrong", "duplicates", "random", "mixed"])
def test_adversarial_drafters_do_not_change_the_output(
    truth: list[tuple[int, ...]], kind: str, batch: int
) -> None:
    """Catches acceptance past the first rejection and rejected rows that leave a KV entry."""
    known = {str(index): answer for index, answer in enumerate(truth)}
    policy = Adversary(kind=kind, answers=known, vocab_size=CONFIG.vocab_size)
    config = SpeculationConfig(method="vanilla", row_budget="full")
    check(TinyEngine(config=CONFIG, policy=policy, speculation=config), truth, batch)


def test_a_drafter_that_is_always_right_needs_few_steps(truth: list[tuple[int, ...]]) -> None:
    """Catches a walk that stops early: exact, but without any speed-up."""
    policy = Adversary(
        kind="right", answers={"0": truth[0]}, vocab_size=CONFIG.vocab_size, num_tokens=9
    )
    config = SpeculationConfig(method="vanilla", row_budget="full")
    engine = build_engine(
        TinyEngine(config=CONFIG, policy=policy, speculation=config), Mesh.single()
    )
    answers(engine, repetitive_prompts(1), max_tokens=MAX_TOKENS)
    # One prompt step gives the first token; 39 more come as 9 drafts and the verifier's own each.
    assert engine.scheduler.next_verdict().step - 1 == 1 + 4


@pytest.mark.parametrize("attention", [MaskedAttention, RowwiseAttention])
def test_every_attention_backend_equals_plain_decoding(
    truth: list[tuple[int, ...]], attention: type
) -> None:
    """Catches a backend whose masks differ from the others'."""
    tiny = TinyEngine(config=CONFIG, speculation=speculation("prompt_lookup"), attention=attention)
    check(tiny, truth, 2)


@pytest.mark.parametrize("max_rows", [4, 7, 12])
def test_prompts_longer_than_a_step_are_run_in_chunks(
    truth: list[tuple[int, ...]], max_rows: int
) -> None:
    """Catches a chunk boundary that loses a row, and tries larger than the room left in a step."""
    tiny = TinyEngine(config=CONFIG, speculation=speculation("copy_spec"), max_rows=max_rows)
    check(tiny, truth, 4)


def test_more_requests_than_slots_wait_for_a_free_one(truth: list[tuple[int, ...]]) -> None:
    """Catches a slot that keeps keys and values of the request before."""
    check(TinyEngine(config=CONFIG, speculation=speculation("copy_spec"), num_slots=1), truth, 4)
