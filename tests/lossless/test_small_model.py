"""Greedy output equals plain decoding, token for token in fp64, whatever the small model drafts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import pytest
import torch

from drafters.cached_model import CachedModel, limit_vocabulary
from drafters.draft_tree import ChainShape, TreeShape
from drafters.small_model import SmallModelDrafter
from drafters.steered import SteeredDrafter, install_steering
from drafters.steering import HEADS, SteeringHead
from engine.interfaces import Site
from engine.models.decoder import Decoder
from engine.models.layers import Linear
from engine.probe import Probe
from engine.records import Request, StepRecord
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.real_drafters import Part, random_steering_head
from tests.support.reference import greedy_decode

DRAFTER = replace(CONFIG, vocab_size=31, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2)
"""Padded: its last two ids mean nothing to the verifier."""

MAX_TOKENS = 40
MAX_LENGTH = 256

Skill = Literal["perfect", "random", "worst"]


def prompts() -> list[tuple[int, ...]]:
    """Prompts that repeat themselves, so that switching methods copy too."""
    source = random.Random(3)
    phrases = [tuple(source.randrange(29) for _ in range(8)) for _ in range(3)]
    return [phrase * 3 + phrase[: 2 + index] for index, phrase in enumerate(phrases)]


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in prompts()]


def drafting_model(skill: Skill) -> Decoder:
    """The verifier itself, another model, or the verifier preferring its least likely token."""
    config = DRAFTER if skill == "random" else CONFIG
    seed = 5 if skill == "random" else 0
    model = random_decoder(config, seed=seed, max_model_len=MAX_LENGTH, dtype=torch.float64)
    if skill == "worst":
        assert isinstance(model.head, Linear)
        model.head.weight.data.neg_()
    limit_vocabulary(model, CONFIG.vocab_size)
    return model


def small_model(
    model: Decoder, shape: ChainShape | TreeShape | None = None, *, num_slots: int = 4
) -> SmallModelDrafter:
    cached = CachedModel(model, num_slots=num_slots, max_length=MAX_LENGTH)
    return SmallModelDrafter(cached, shape or ChainShape(num_tokens=5))


def steered(skill: Skill, kind: type[SteeringHead], *, strength: float = 1.0) -> Part:
    """A small model under a head with random weights; strength 0 is an untrained head."""
    model = drafting_model(skill)
    head = random_steering_head(CONFIG, model.config, kind, strength=strength)
    steering = install_steering(model, head)
    drafter = SteeredDrafter(small_model(model), steering)
    return Part(drafter, head.projection(torch.float64))


def probe() -> Probe:
    """Random weights: its gate opens at some steps and not at others."""
    return Probe(
        weight=torch.randn(36, generator=torch.Generator().manual_seed(5)),
        threshold=0.5,
        layer=1,
        site=Site.ATTENTION,
        model_id="tiny",
    )


def tiny_engine(method: str, drafter: str, part: Part) -> TinyEngine:
    if method == "switch_sd":
        config = speculation("switch_sd", drafter=drafter, copy_match_length=2, row_budget="full")
    else:
        config = speculation(method, row_budget="full")
    return TinyEngine(
        config=CONFIG,
        speculation=config,
        probe=probe(),
        drafter=part.drafter,
        projection=part.projection,
    )


def records_of(tiny: TinyEngine, prompt: tuple[int, ...]) -> list[StepRecord]:
    """The decode steps of one request."""
    engine = build_engine(tiny, Mesh.single())
    engine.add(Request(request_id="0", prompt_ids=prompt, max_tokens=MAX_TOKENS))
    records: list[StepRecord] = []
    while engine.has_work:
        records += engine.step().records
    return [record for record in records if record.source != "prefill"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", ["small_model", "switch_sd"])
@pytest.mark.parametrize("skill", ["perfect", "random", "worst"])
def test_a_small_model_does_not_change_the_output(
    truth: list[tuple[int, ...]], skill: Skill, method: str, batch: int
) -> None:
    """Catches a token that is accepted because the drafter likes it."""
    tiny = tiny_engine(method, "small_model", Part(small_model(drafting_model(skill))))
    engine = build_engine(tiny, Mesh.single())
    assert answers(engine, prompts()[:batch], max_tokens=MAX_TOKENS) == truth[:batch]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", ["steered", "switch_sd"])
@pytest.mark.parametrize("kind", HEADS.values())
def test_a_steered_model_does_not_change_the_output(
    truth: list[tuple[int, ...]], kind: type[SteeringHead], method: str, batch: int
) -> None:
    """Catches features of the wrong row or request that crash, and reading that changes rows."""
    tiny = tiny_engine(method, "steered", steered("random", kind))
    engine = build_engine(tiny, Mesh.single())
    assert answers(engine, prompts()[:batch], max_tokens=MAX_TOKENS) == truth[:batch]


@pytest.mark.parametrize("skill", ["perfect", "random", "worst"])
@pytest.mark.parametrize("method", ["small_model", "switch_sd"])
def test_trees_do_not_change_the_output(
    truth: list[tuple[int, ...]], method: str, skill: Skill
) -> None:
    """Catches a branch that is verified as if it were the best one."""
    shape = TreeShape(total_nodes=14, depth=4, top_k=3)
    part = Part(small_model(drafting_model(skill), shape))
    engine = build_engine(tiny_engine(method, "small_model", part), Mesh.single())
    assert answers(engine, prompts(), max_tokens=MAX_TOKENS) == truth


def test_more_requests_than_slots_do_not_change_the_output(
    truth: list[tuple[int, ...]],
) -> None:
    """Catches a request that drafts from the cache of the one that took its slot."""
    part = Part(small_model(drafting_model("perfect"), num_slots=1))
    engine = build_engine(tiny_engine("small_model", "small_model", part), Mesh.single())
    assert answers(engine, prompts(), max_tokens=MAX_TOKENS) == truth


@pytest.mark.parametrize("method", ["small_model", "steered"])
def test_a_perfect_drafter_is_accepted_to_the_last_token(method: str) -> None:
    """Catches a drafter whose own cache goes wrong: exact, but without any speed-up.

    The verifier's own model, alone or under an untrained head, is never wrong.
    """
    part = Part(small_model(drafting_model("perfect")))
    if method == "steered":
        part = steered("perfect", SteeringHead, strength=0.0)
    records = records_of(tiny_engine(method, method, part), prompts()[0])
    # One token comes from the prompt; every step adds five drafts and the verifier's own.
    assert [record.accepted for record in records] == [5, 5, 5, 5, 5, 5, 2]
    assert all(record.source == "neural" for record in records)


def test_a_strong_vector_changes_what_is_drafted() -> None:
    """The steered runs above must not be those of an unsteered drafter."""
    accepted = []
    for strength in (0.0, 3.0):
        part = steered("perfect", SteeringHead, strength=strength)
        records = records_of(tiny_engine("steered", "steered", part), prompts()[0])
        accepted.append(sum(record.accepted for record in records))
    assert accepted[1] < accepted[0]


def test_switching_copies_and_drafts() -> None:
    """The switching runs above must do both, or they tested one of the two only."""
    part = Part(small_model(drafting_model("random")))
    records = records_of(tiny_engine("switch_sd", "small_model", part), prompts()[0])
    assert {"copy", "neural"} <= {record.source for record in records}
