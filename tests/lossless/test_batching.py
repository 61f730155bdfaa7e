"""Batching changes no token: joining, prefixes, preemption, interruption, methods per request.

All in fp64 against plain decoding by recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import torch

from engine.engine import SpeculativeEngine
from engine.records import Request
from engine.sampling import SamplingParams
from engine.speculation import SpeculationConfig, speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, MAX_TOKENS, probe, repetitive_prompts
from tests.lossless.test_neural import engine as eagle_engine
from tests.lossless.test_sampled_engine import KINDS, alone, requests, tokens
from tests.support.engines import TinyEngine, build_engine, events_of, random_decoder
from tests.support.reference import greedy_decode

SYSTEM = tuple(Random(25).randrange(29) for _ in range(40))


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in shared_prompts()]


def shared_prompts() -> list[tuple[int, ...]]:
    """Four prompts with a long common beginning; the last two are the same."""
    return [SYSTEM + tail for tail in ((1, 2, 3), (1, 2, 4, 5), (6,), (6,))]


def ask(engine: SpeculativeEngine, name: str, prompt: Sequence[int]) -> None:
    engine.add(Request(request_id=name, prompt_ids=tuple(prompt), max_tokens=MAX_TOKENS))


def drain(engine: SpeculativeEngine, found: dict[str, list[int]], steps: int = 10**9) -> None:
    while engine.has_work and steps:
        steps -= 1
        for event in engine.step().events:
            found.setdefault(event.request_id, []).extend(event.token_ids)


@pytest.mark.parametrize("method", ["vanilla", "copy_spec", "switch_sd"])
@pytest.mark.parametrize("steps_between", [0, 3, 10**9])
@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_shared_prefixes_are_computed_once(
    truth: list[tuple[int, ...]], method: str, steps_between: int, num_slots: int
) -> None:
    """From free slots and from running ones, in place and copied: hits are counted."""
    tiny = TinyEngine(
        config=CONFIG, speculation=speculation(method), probe=probe(), num_slots=num_slots
    )
    engine = build_engine(tiny, Mesh.single())
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(shared_prompts()):
        ask(engine, str(index), prompt)
        drain(engine, found, steps_between)
    drain(engine, found)
    assert [tuple(found[str(index)]) for index in range(4)] == truth
    counters = engine.scheduler.admission.prefix_counters
    assert counters.queries == sum(map(len, shared_prompts()))
    if steps_between:
        assert counters.hits >= 3 * len(SYSTEM)


def test_reuse_can_be_switched_off(truth: list[tuple[int, ...]]) -> None:
    engine = build_engine(TinyEngine(config=CONFIG, reuses_prefixes=False), Mesh.single())
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(shared_prompts()):
        ask(engine, str(index), prompt)
        drain(engine, found)
    assert [tuple(found[str(index)]) for index in range(4)] == truth
    assert engine.scheduler.admission.prefix_counters.hits == 0


def test_a_reused_prefix_gives_eagle3_the_same_drafts(truth: list[tuple[int, ...]]) -> None:
    """vllm#15901's class: its keys at i depend on token i + 1, so shared ones would be wrong."""
    config = SpeculationConfig(method="eagle3", drafter="eagle3", row_budget="full")
    engine = eagle_engine(config, "chain")
    accepted: list[int] = []
    for index, prompt in enumerate((shared_prompts()[0], shared_prompts()[0], shared_prompts()[1])):
        ask(engine, str(index), prompt)
        total = 0
        output: list[int] = []
        while engine.has_work:
            outcome = engine.step()
            total += sum(record.accepted for record in outcome.records)
            output += [token for event in outcome.events for token in event.token_ids]
        accepted.append(total)
        assert tuple(output) == truth[0 if index < 2 else 1]
    assert engine.scheduler.admission.prefix_counters.hits >= 2 * len(SYSTEM)
    assert accepted[0] == accepted[1]


@pytest.mark.parametrize("method", ["vanilla", "copy_spec"])
def test_preempted_requests_go_on_where_they_were(
    truth: list[tuple[int, ...]], method: str
) -> None:
    """A cache for fewer tokens than the requests need together."""
    tiny = TinyEngine(config=CONFIG, speculation=speculation(method), max_kv_tokens=200)
    engine = build_engine(tiny, Mesh.single())
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(shared_prompts()):
        ask(engine, str(index), prompt)
    while engine.has_work:
        drain(engine, found, 1)
        assert engine.scheduler.admission.num_kv_tokens <= 200 + 4 * 12
    assert [tuple(found[str(index)]) for index in range(4)] == truth
    assert engine.scheduler.admission.num_preemptions > 0


@pytest.mark.parametrize("kind", ["warm", "penalised", "forbidden"])
@pytest.mark.parametrize("delivered", [1, 2, 13])
def test_an_interrupted_sampled_request_goes_on_with_the_same_tokens(
    kind: str, delivered: int
) -> None:
    """After a crash the request comes back with what was delivered; nothing is repeated."""
    whole = alone(KINDS[kind])
    tiny = TinyEngine(config=CONFIG, speculation=speculation("copy_spec"))
    resumed = [
        replace(request, output_ids=answer[:delivered])
        for request, answer in zip(requests(KINDS[kind]), whole, strict=True)
    ]
    found = events_of(build_engine(tiny, Mesh.single()), resumed)
    assert [tokens(events) for events in found] == [answer[delivered:] for answer in whole]


def test_requests_may_choose_their_own_method() -> None:
    tiny = TinyEngine(
        config=CONFIG, speculation=speculation("switch_sd", copy_match_length=2), probe=probe()
    )
    engine = build_engine(tiny, Mesh.single())
    methods = [None, speculation("vanilla"), speculation("copy_spec", copy_match_length=1)]
    sources: dict[str, set[str]] = {}
    for index, chosen in enumerate(methods):
        prompt = repetitive_prompts(3)[index]
        engine.add(
            Request(
                request_id=str(index),
                prompt_ids=prompt,
                max_tokens=MAX_TOKENS,
                speculation=chosen,
            )
        )
    found: dict[str, list[int]] = {}
    while engine.has_work:
        outcome = engine.step()
        for record in outcome.records:
            sources.setdefault(record.request, set()).add(record.source)
        for event in outcome.events:
            found.setdefault(event.request_id, []).extend(event.token_ids)
    model = random_decoder(CONFIG, dtype=torch.float64)
    for index, prompt in enumerate(repetitive_prompts(3)):
        assert tuple(found[str(index)]) == greedy_decode(model, prompt, MAX_TOKENS)
    assert sources["1"] == {"prefill", "plain"}
    assert "copy" in sources["2"]


def test_a_drafter_that_is_not_loaded_is_refused_by_name() -> None:
    engine = build_engine(TinyEngine(config=CONFIG), Mesh.single())
    request = Request(
        request_id="r", prompt_ids=(1, 2), max_tokens=3, speculation=speculation("eagle3")
    )
    with pytest.raises(ValueError, match="drafter 'eagle3' was not loaded"):
        engine.add(request)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(request_id="r", prompt_ids=(1, 29), max_tokens=3), "the prompt has token id 29"),
        (
            Request(
                request_id="r",
                prompt_ids=(1,),
                max_tokens=3,
                sampling=SamplingParams(logit_bias=((-1, 2.0),)),
            ),
            "logit_bias has token id -1; this model knows ids 0 to 28",
        ),
    ],
)
def test_token_ids_that_the_model_does_not_know_are_refused(
    request_: Request, message: str
) -> None:
    engine = build_engine(TinyEngine(config=CONFIG), Mesh.single())
    with pytest.raises(ValueError, match=message):
        engine.add(request_)


def test_random_arrivals_and_aborts_leave_every_slot_free(truth: list[tuple[int, ...]]) -> None:
    """200 aborts at random points, with reuse, preemption and copies going on (dynamo#7489)."""
    random = Random(4)
    tiny = TinyEngine(
        config=CONFIG,
        speculation=speculation("copy_spec"),
        num_slots=3,
        max_kv_tokens=180,
    )
    engine = build_engine(tiny, Mesh.single())
    found: dict[str, list[int]] = {}
    aborted: set[str] = set()
    live: list[str] = []
    for number in range(260):
        name = f"{number % 4}-{number}"
        ask(engine, name, shared_prompts()[number % 4])
        live.append(name)
        drain(engine, found, random.randrange(4))
        if random.random() < 0.85:
            gone = live.pop(random.randrange(len(live)))
            engine.cancel(gone)
            aborted.add(gone)
    drain(engine, found)
    assert len(aborted) >= 200
    for name, output in found.items():
        expected = truth[int(name[0])]
        assert tuple(output) == (expected[: len(output)] if name in aborted else expected)
    assert set(found) | aborted == {f"{number % 4}-{number}" for number in range(260)}
    assert not engine.scheduler.has_work
    assert engine.scheduler.admission.num_kv_tokens == 0
    assert engine.scheduler.admission.num_free_slots == 3
