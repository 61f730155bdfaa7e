"""Drafts that are themselves drawn at random: coupled ones change no token, others no frequency."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafters.draft_tree import ChainShape
from engine.engine import SpeculativeEngine
from engine.methods import DraftSampleMethod
from engine.records import Request, StepRecord
from engine.sampling import SamplingParams, distribution
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG
from tests.lossless.test_sampled_engine import KINDS, alone, requests, tokens
from tests.lossless.test_small_model import Skill, drafting_model, small_model
from tests.support.causal import CausalContext
from tests.support.chi_square import ALARM, p_value
from tests.support.engines import TinyEngine, build_engine, events_of, random_decoder
from tests.support.unreliable import unreliable

PARAMS = SamplingParams(temperature=0.6)
PROMPT = (3, 1, 4, 1, 5)
NUM_REQUESTS = 4_000


def engine(
    skill: Skill, method: DraftSampleMethod, *, num_slots: int = 4, depth: int = 3
) -> SpeculativeEngine:
    drafter = small_model(drafting_model(skill), ChainShape(num_tokens=depth), num_slots=num_slots)
    tiny = TinyEngine(
        config=CONFIG,
        num_slots=num_slots,
        max_rows=max(96, 5 * num_slots),
        speculation=speculation(
            "small_model",
            row_budget="full",
            num_speculative_tokens=depth,
            draft_sample_method=method,
        ),
        drafter=drafter,
    )
    return build_engine(tiny, Mesh.single())


def run(which: SpeculativeEngine, request: Request) -> tuple[list[int], list[StepRecord]]:
    which.add(request)
    output: list[int] = []
    records: list[StepRecord] = []
    while which.has_work:
        outcome = which.step()
        output += [token for event in outcome.events for token in event.token_ids]
        records += [record for record in outcome.records if record.drafted]
    return output, records


@pytest.mark.parametrize("kind", ["warm", "nucleus", "penalised"])
@pytest.mark.parametrize("skill", ["perfect", "random", "worst"])
def test_coupled_drafts_change_no_token(kind: str, skill: Skill) -> None:
    found = events_of(engine(skill, "coupled"), requests(KINDS[kind]))
    assert [tokens(events) for events in found] == alone(KINDS[kind])


def test_coupled_drafts_over_a_failing_link_change_no_token() -> None:
    def make() -> object:
        return small_model(drafting_model("perfect"), ChainShape(num_tokens=3))

    with unreliable(5, make, vocab_size=CONFIG.vocab_size) as drafter:  # type: ignore[arg-type]
        config = speculation("small_model", row_budget="full")
        tiny = TinyEngine(config=CONFIG, speculation=config, drafter=drafter)
        found = events_of(build_engine(tiny, Mesh.single()), requests(KINDS["warm"]))
        assert drafter.counters.answered > 0
    assert [tokens(events) for events in found] == alone(KINDS["warm"])


@pytest.mark.parametrize("method", ["coupled", "probabilistic"])
def test_a_perfect_drafter_is_always_right(method: DraftSampleMethod) -> None:
    """Equal distributions: nothing may be rejected, in either way of drawing."""
    request = Request(
        request_id="r", prompt_ids=PROMPT, max_tokens=30, sampling=SamplingParams(temperature=1.0)
    )
    _, records = run(engine("perfect", method), request)
    assert records
    assert all(record.accepted == record.drafted for record in records[:-1])


def test_greedy_drafts_for_sampled_requests_are_right_less_often() -> None:
    request = Request(
        request_id="r", prompt_ids=PROMPT, max_tokens=60, sampling=SamplingParams(temperature=1.5)
    )
    coupled = sum(record.accepted for record in run(engine("perfect", "coupled"), request)[1])
    greedy = sum(record.accepted for record in run(engine("perfect", "greedy"), request)[1])
    assert greedy < coupled


def exact_pairs() -> np.ndarray:
    """[V, V]: probabilities of the second and the third output token."""
    model = random_decoder(CONFIG, dtype=torch.float64)

    def behind(*token_ids: int) -> np.ndarray:
        whole = (*PROMPT, *token_ids)
        hidden = model(torch.tensor(whole), CausalContext(len(whole)))
        return distribution(model.logits(hidden[-1:])[0], PARAMS).numpy()

    first = behind()
    pairs = np.zeros((CONFIG.vocab_size, CONFIG.vocab_size))
    for one in np.flatnonzero(first > 1e-5):
        second = behind(int(one))
        for two in np.flatnonzero(first[one] * second > 1e-6):
            pairs[two] += first[one] * second[two] * behind(int(one), int(two))
    return np.asarray(pairs / pairs.sum())


@pytest.mark.slow
@pytest.mark.parametrize("skill", ["random", "worst"])
def test_proposed_drafts_keep_the_distribution(skill: Skill) -> None:
    """The rejection rule through a whole engine: both tokens are drafted, most are rejected."""
    which = engine(skill, "probabilistic", num_slots=64, depth=2)
    wanted = [
        Request(
            request_id=str(seed),
            prompt_ids=PROMPT,
            max_tokens=3,
            sampling=SamplingParams(temperature=PARAMS.temperature, seed=seed),
        )
        for seed in range(NUM_REQUESTS)
    ]
    counts = np.zeros((CONFIG.vocab_size, CONFIG.vocab_size), dtype=np.int64)
    for events in events_of(which, wanted):
        _, second, third = tokens(events)
        counts[second, third] += 1
    expected = exact_pairs()
    assert p_value(counts.sum(1), expected.sum(1)) > ALARM
    assert p_value(counts.sum(0), expected.sum(0)) > ALARM
