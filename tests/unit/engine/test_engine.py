"""The engine's edges: limits, cancelling, slots, and the record of every step."""

from __future__ import annotations

import pytest

from engine.records import Request, StepRecord, TokenEvent
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, repetitive_prompts
from tests.support.engines import TinyEngine, build_engine

COPYING = speculation("copy_spec", copy_match_length=1, row_budget="full")


def run(tiny: TinyEngine, request: Request) -> tuple[list[TokenEvent], list[StepRecord]]:
    """One request to its end."""
    engine = build_engine(tiny, Mesh.single())
    engine.add(request)
    events: list[TokenEvent] = []
    records: list[StepRecord] = []
    while engine.has_work:
        outcome = engine.step()
        events.extend(outcome.events)
        records.extend(outcome.records)
    return events, records


def request(request_id: str = "r", *, length: int = 60, max_tokens: int = 100) -> Request:
    """A repetitive prompt of ``length`` tokens."""
    prompt = (repetitive_prompts(1)[0] * 9)[:length]
    return Request(request_id=request_id, prompt_ids=prompt, max_tokens=max_tokens)


def test_drafts_stop_at_max_model_len() -> None:
    """VLLM 42533: drafts past the limit crash the server. 64 tokens in all, and all end well."""
    tiny = TinyEngine(config=CONFIG, speculation=COPYING, max_model_len=64)
    events, _ = run(tiny, request())
    assert sum(len(event.token_ids) for event in events) == 4
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("length", [0, 64, 70])
def test_prompt_that_does_not_fit_is_refused_with_its_length(length: int) -> None:
    """Early, in one sentence, and the engine goes on."""
    engine = build_engine(TinyEngine(config=CONFIG, max_model_len=64), Mesh.single())
    with pytest.raises(ValueError, match=f"{length} tokens.*64"):
        engine.add(request(length=length))
    assert not engine.has_work


def test_stop_token_ends_the_answer_unless_it_is_ignored() -> None:
    """The stop token comes out as the last token."""
    plain, _ = run(TinyEngine(config=CONFIG), request(length=20, max_tokens=12))
    tokens = [token for event in plain for token in event.token_ids]
    stop = tokens[4]
    tiny = TinyEngine(config=CONFIG, speculation=COPYING, stop_ids=frozenset({stop}))
    stopped, _ = run(tiny, request(length=20, max_tokens=12))
    assert [t for event in stopped for t in event.token_ids] == tokens[: tokens.index(stop) + 1]
    assert stopped[-1].finish_reason == "stop"
    ignoring = Request(
        request_id="i", prompt_ids=request(length=20).prompt_ids, max_tokens=12, ignore_eos=True
    )
    ignored, _ = run(tiny, ignoring)
    assert [t for event in ignored for t in event.token_ids] == tokens


def test_cancelled_request_frees_its_slot_for_the_next_one() -> None:
    """A client that leaves must not keep a slot or a commit in flight."""
    engine = build_engine(TinyEngine(config=CONFIG, num_slots=1), Mesh.single())
    engine.add(request("a"))
    engine.step()
    engine.cancel("a")
    assert not engine.has_work
    engine.add(request("b", length=10, max_tokens=3))
    events = [event for _ in range(3) for event in engine.step().events]
    assert [event.request_id for event in events] == ["b"] * 3
    assert not engine.has_work


def test_cancelling_a_waiting_or_unknown_request_is_harmless() -> None:
    """It may have ended a moment ago."""
    engine = build_engine(TinyEngine(config=CONFIG, num_slots=1), Mesh.single())
    engine.add(request("a"))
    engine.add(request("b"))
    engine.cancel("b")
    engine.cancel("nobody")
    engine.step()
    engine.cancel("a")
    assert not engine.has_work


def test_request_id_in_use_is_refused() -> None:
    """Two requests under one id would share their events."""
    engine = build_engine(TinyEngine(config=CONFIG), Mesh.single())
    engine.add(request("a"))
    with pytest.raises(ValueError, match="'a' is already in use"):
        engine.add(request("a"))


def test_records_account_for_every_output_token() -> None:
    """Metrics are computed from records alone, so they must add up."""
    events, records = run(TinyEngine(config=CONFIG, speculation=COPYING), request(max_tokens=50))
    assert sum(record.output for record in records) == 50
    assert sum(len(event.token_ids) for event in events) == 50
    decoding = [record for record in records if record.source != "prefill"]
    assert all(record.output == record.accepted + 1 for record in decoding[:-1])
    assert {record.source for record in records} <= {"prefill", "copy", "plain"}
    assert [record.step for record in records] == list(range(1, len(records) + 1))


def test_policy_can_change_between_requests_only() -> None:
    """A request keeps the copy index its policy asked for."""
    engine = build_engine(TinyEngine(config=CONFIG), Mesh.single())
    engine.use_policy(COPYING)
    engine.add(request())
    engine.step()
    with pytest.raises(AssertionError, match="between requests"):
        engine.use_policy(speculation("vanilla"))
