"""The gang of ranks on real Ray actors: starts, stops, refusals and deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.records import Request
from engine.speculation import speculation
from ray_app.engine_client import EngineClient
from ray_app.worker_group import RankFailedError, WorkerGroup
from tests.support.leftovers import living_actors, living_processes, placement_groups

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TOKEN = "token"
PROMPT = tuple(range(20)) * 2


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(cluster: None) -> Iterator[None]:  # noqa: ARG001
    yield
    deadline = time.monotonic() + 20.0
    while (living_actors("VerifierRank") or placement_groups()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living_actors("VerifierRank") == []
    assert placement_groups() == []


def _serve_once(group: WorkerGroup) -> list[int]:
    """Start, answer one request, tell the coordinator to stop."""

    async def talk() -> list[int]:
        client = EngineClient()
        await client.connect(group.start(TOKEN), TOKEN)
        request = Request(request_id="a", prompt_ids=PROMPT, max_tokens=8, ignore_eos=True)
        tokens = [
            token async for event in await client.submit(request) for token in event.token_ids
        ]
        client.stop("over")
        await asyncio.to_thread(group.stop)
        await client.close()
        return tokens

    return asyncio.run(talk())


def test_three_cycles_answer_alike_and_leave_nothing(engine_config: EngineConfig) -> None:
    """The last cycle splits the layers instead of the heads: same ranks, same answer."""
    stages = replace(engine_config, tensor_parallel_size=1, pipeline_parallel_size=2)
    answers = []
    for config in (engine_config, engine_config, stages):
        group = WorkerGroup(config)
        answers.append(_serve_once(group))
        assert len(group.places) == 2
        assert living_processes(place.pid for place in group.places) == []
        assert living_actors("VerifierRank") == []
        assert placement_groups() == []
    assert len(answers[0]) == 8
    assert answers[1:] == answers[:1] * 2


def test_a_ranks_refusal_is_its_own_sentence(engine_config: EngineConfig) -> None:
    group = WorkerGroup(replace(engine_config, speculation=speculation("switch_sd")))
    with pytest.raises(ValueError, match=r"^method 'switch_sd' needs a probe"):
        group.start(TOKEN)
    assert living_processes(place.pid for place in group.places) == []


def test_a_gang_too_large_for_the_cluster_is_refused_at_once(engine_config: EngineConfig) -> None:
    with pytest.raises(ValueError, match=r"need 5 CPUs on one node, and here are 4 CPUs"):
        WorkerGroup(replace(engine_config, tensor_parallel_size=5)).start(TOKEN)


def test_a_killed_rank_is_named_and_takes_the_gang_along(engine_config: EngineConfig) -> None:
    """Its peer complains of a broken connection at the same time; that is not the reason."""
    group = WorkerGroup(engine_config)
    group.start(TOKEN)
    group.check(0.0)
    os.kill(group.places[1].pid, signal.SIGKILL)
    with pytest.raises(RankFailedError, match=r"verifier rank 1 \(process \d+\) died"):
        group.check(30.0)
    group.kill()
    assert living_processes(place.pid for place in group.places) == []
