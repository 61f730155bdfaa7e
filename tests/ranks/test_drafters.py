"""Real neural drafters beside a verifier on ranks, in process and over failing links, in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from engine.engine import SpeculativeEngine
from engine.interfaces import NeuralDrafter
from engine.records import Request, StepRecord
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, MAX_TOKENS, probe, repetitive_prompts
from tests.support.distributed import run_ranks
from tests.support.engines import TinyEngine, build_engine, random_decoder
from tests.support.real_drafters import DRAFTERS, SHAPES, Part
from tests.support.reference import greedy_decode
from tests.support.unreliable import unreliable

pytestmark = pytest.mark.ranks

GRIDS = [(1, 1), (2, 1), (1, 2)]
BATCHES = (1, 3)
CASES = [
    (name, shape)
    for name in DRAFTERS
    for shape in SHAPES
    if (name, shape) != ("medusa", "chain")  # one path of the static tree
]


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding on one device by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in repetitive_prompts(4)]


def engine_of(mesh: Mesh, name: str, method: str, part: Part) -> SpeculativeEngine:
    """This rank's engine with a real drafter; the probe's gate opens now and then."""
    config = speculation(method, drafter=name, copy_match_length=2, row_budget="full")
    return build_engine(
        TinyEngine(
            config=CONFIG,
            speculation=config,
            probe=probe(1),
            drafter=part.drafter,
            projection=part.projection,
        ),
        mesh,
    )


def decode(engine: SpeculativeEngine, batch: int) -> tuple[list[tuple[int, ...]], list[StepRecord]]:
    """Answers to the first prompts, together, and the steps they took."""
    outputs: dict[str, list[int]] = {str(index): [] for index in range(batch)}
    records: list[StepRecord] = []
    for index, prompt in enumerate(repetitive_prompts(4)[:batch]):
        engine.add(Request(request_id=str(index), prompt_ids=prompt, max_tokens=MAX_TOKENS))
    while engine.has_work:
        outcome = engine.step()
        records += outcome.records
        for event in outcome.events:
            outputs[event.request_id] += event.token_ids
    return [tuple(tokens) for tokens in outputs.values()], records


def serve(mesh: Mesh, name: str, shape: str, seeds: Sequence[int | None]) -> list[Any]:
    """Both methods, in process (None) or over a link that fails by a seed, batch after batch."""
    results = []
    for method in (name, "switch_sd"):
        for seed in seeds:
            part = DRAFTERS[name](CONFIG, SHAPES[shape])
            if seed is None or not mesh.is_coordinator:
                results += _answer(engine_of(mesh, name, method, part))
                continue
            with unreliable(seed, partial(_drafter, name, shape), vocab_size=29) as drafter:
                far = Part(drafter, part.projection)
                results += _answer(engine_of(mesh, name, method, far))
    return results


def _drafter(name: str, shape: str) -> NeuralDrafter:
    return DRAFTERS[name](CONFIG, SHAPES[shape]).drafter


def _answer(engine: SpeculativeEngine) -> list[Any]:
    """On the coordinator: (answers, neural drafts, copies) of every batch."""
    if not engine.is_coordinator:
        engine.follow()
        return []
    found = []
    for batch in BATCHES:
        answers, records = decode(engine, batch)
        assert not any(record.drafter_calls for record in records if record.source == "copy")
        assert all(record.drafter_calls == 1 for record in records if record.source == "neural")
        sources = [record.source for record in records]
        found.append((answers, sources.count("neural"), sources.count("copy")))
    engine.stop()
    return found


@pytest.mark.parametrize(("tp", "pp"), GRIDS)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_real_drafters_never_change_the_output(
    truth: list[tuple[int, ...]], name: str, shape: str, tp: int, pp: int
) -> None:
    """In process, then twice over a failing link; alone, then switching with copies."""
    results = run_ranks(serve, tp, pp, name, shape, (None, 1, 2))[(pp - 1) * tp]
    assert [answers for answers, _, _ in results] == [truth[:batch] for batch in BATCHES] * 6
    runs = [results[first : first + len(BATCHES)] for first in range(0, len(results), len(BATCHES))]
    alone, *alone_over_links, switching, over_link, over_other_link = runs
    assert all(neural > 0 for _, neural, _ in (*alone, *switching))
    assert any(copies > 0 for _, _, copies in switching)
    for linked in (*alone_over_links, over_link, over_other_link):
        assert sum(neural for _, neural, _ in linked) > 0, "some drafts come through"
