"""Sampled answers of whole engines: drafts, batches and ranks change no token of a seeded request.

With the noise fixed by (seed, position), sampling is a deterministic function of the verifier's
logits, so equality can be asked for token by token, as for greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from engine.engine import SpeculativeEngine
from engine.records import Request, StepRecord, TokenEvent
from engine.sampling import SamplingParams
from engine.speculation import SpeculationConfig, speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, probe, repetitive_prompts
from tests.support.adversaries import Adversary
from tests.support.causal import CausalContext
from tests.support.engines import TinyEngine, build_engine, events_of, random_decoder
from tests.support.real_drafters import SHAPES, medusa

MAX_TOKENS = 30

KINDS = {
    "warm": SamplingParams(temperature=1.0, seed=11),
    "hot": SamplingParams(temperature=1.7, seed=5, top_k=9),
    "nucleus": SamplingParams(temperature=0.9, seed=3, top_p=0.8, min_p=0.02),
    "penalised": SamplingParams(
        temperature=0.8,
        seed=7,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=((4, 1.5), (7, -100.0)),
    ),
    "greedy, penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5),
    "forbidden": SamplingParams(temperature=1.0, seed=2, min_tokens=12, bad_words=((3,), (4, 5))),
}


def requests(sampling: SamplingParams, count: int = 4) -> list[Request]:
    return [
        Request(
            request_id=str(index),
            prompt_ids=prompt,
            max_tokens=MAX_TOKENS,
            sampling=replace(sampling, seed=sampling.seed + index),
        )
        for index, prompt in enumerate(repetitive_prompts(count))
    ]


def tokens(events: Sequence[TokenEvent]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.token_ids)


def run(tiny: TinyEngine, wanted: Sequence[Request]) -> list[tuple[int, ...]]:
    return [tokens(events) for events in events_of(build_engine(tiny, Mesh.single()), wanted)]


def alone(
    sampling: SamplingParams, stop_ids: frozenset[int] = frozenset()
) -> list[tuple[int, ...]]:
    """Every request by itself, without drafts."""
    tiny = TinyEngine(config=CONFIG, stop_ids=stop_ids)
    return [run(tiny, [request])[0] for request in requests(sampling)]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("method", ["vanilla", "prompt_lookup", "switch_sd"])
def test_a_seeded_request_gets_the_same_tokens_in_any_batch_with_any_drafts(
    kind: str, method: str
) -> None:
    stop_ids = frozenset({1})
    tiny = TinyEngine(
        config=CONFIG, speculation=speculation(method), probe=probe(), stop_ids=stop_ids
    )
    assert run(tiny, requests(KINDS[kind])) == alone(KINDS[kind], stop_ids)


@pytest.mark.parametrize("kind", ["warm", "penalised"])
@pytest.mark.parametrize("drafts", ["right", "wrong", "duplicates", "random", "mixed"])
def test_adversarial_drafts_change_no_sampled_token(kind: str, drafts: str) -> None:
    truth = alone(KINDS[kind])
    known = {str(index): answer for index, answer in enumerate(truth)}
    policy = Adversary(kind=drafts, answers=known, vocab_size=CONFIG.vocab_size)
    config = SpeculationConfig(method="vanilla", row_budget="full")
    tiny = TinyEngine(config=CONFIG, policy=policy, speculation=config)
    assert run(tiny, requests(KINDS[kind])) == truth


@pytest.mark.parametrize("kind", ["warm", "penalised"])
def test_a_medusa_tree_changes_no_sampled_token(kind: str) -> None:
    part = medusa(CONFIG, SHAPES["tree"])
    tiny = TinyEngine(
        config=CONFIG,
        speculation=speculation("medusa", row_budget="full"),
        drafter=part.drafter,
        projection=part.projection,
    )
    assert run(tiny, requests(KINDS[kind])) == alone(KINDS[kind])


def test_other_seeds_give_other_answers() -> None:
    """sglang#13039's class: verifying greedily whatever the temperature gives one answer."""
    tiny = TinyEngine(config=CONFIG, speculation=speculation("copy_spec"))
    engine = build_engine(tiny, Mesh.single())
    prompt = repetitive_prompts(1)[0]
    wanted = [
        Request(
            request_id=str(seed),
            prompt_ids=prompt,
            max_tokens=6,
            sampling=SamplingParams(temperature=1.5, seed=seed),
        )
        for seed in range(50)
    ]
    assert len({tokens(events) for events in events_of(engine, wanted)}) > 25


def test_greedy_requests_in_a_batch_with_sampled_ones_stay_greedy() -> None:
    plain = SamplingParams()
    tiny = TinyEngine(config=CONFIG, speculation=speculation("copy_spec"))
    mixed = [
        replace(request, sampling=plain if index % 2 else KINDS["hot"])
        for index, request in enumerate(requests(plain))
    ]
    found = run(tiny, mixed)
    truth = alone(plain)
    assert found[1::2] == truth[1::2]
    assert found[0] != truth[0]


def test_min_tokens_bad_words_and_bias_are_kept() -> None:
    stop_ids = frozenset({1, 2, 6, 8, 9})
    answers = alone(KINDS["forbidden"], stop_ids)
    for answer in answers:
        assert not stop_ids & set(answer[:12])
        assert 3 not in answer
        assert all(pair != (4, 5) for pair in pairwise(answer))
    assert any(len(answer) < MAX_TOKENS for answer in answers)
    assert all(7 not in answer for answer in alone(KINDS["penalised"]))


def test_a_request_may_stop_at_tokens_of_its_own() -> None:
    plain = alone(SamplingParams())[0]
    stop = plain[9]
    found = alone(SamplingParams(stop_token_ids=(stop,)))[0]
    assert found == plain[: plain.index(stop) + 1]


def test_logprobs_are_the_raw_models_with_and_without_drafts() -> None:
    """vllm#17876 and #34497: neither zeros, nor speculation silently switched off."""
    sampling = SamplingParams(logprobs=3, prompt_logprobs=2)
    tiny = TinyEngine(config=CONFIG, speculation=speculation("copy_spec"))
    engine = build_engine(tiny, Mesh.single())
    events, records = _run_with_records(engine, requests(sampling, 1)[0])
    assert sum(record.accepted for record in records) > 0
    output = tokens(events)
    prompt = repetitive_prompts(1)[0]
    reference = _reference_logprobs((*prompt, *output))
    found = [entry for event in events for entry in event.logprobs]
    assert [entry.token_id for entry in found] == list(output)
    for position, entry in enumerate(found, start=len(prompt)):
        row = reference[position - 1]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]))
        assert entry.rank == 1
        assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()
    scored = events[0].prompt_logprobs
    assert [entry.token_id for entry in scored] == list(prompt[1:])
    for position, entry in enumerate(scored, start=1):
        assert entry.logprob == pytest.approx(float(reference[position - 1][entry.token_id]))
    assert not any(event.prompt_logprobs for event in events[1:])


def _run_with_records(
    engine: SpeculativeEngine, request: Request
) -> tuple[list[TokenEvent], list[StepRecord]]:
    events: list[TokenEvent] = []
    records: list[StepRecord] = []
    engine.add(request)
    while engine.has_work:
        outcome = engine.step()
        events += outcome.events
        records += outcome.records
    return events, records


def _reference_logprobs(token_ids: tuple[int, ...]) -> torch.Tensor:
    model = random_decoder(CONFIG, dtype=torch.float64)
    hidden = model(torch.tensor(token_ids), CausalContext(len(token_ids)))
    return model.logits(hidden).log_softmax(-1)
