"""A neural drafter never changes the output: fp64 tokens equal plain decoding's."""

from __future__ import annotations

import random

import pytest
import torch

from drafters.draft_tree import ChainShape, TreeShape
from drafters.eagle3 import Eagle3Drafter
from engine.engine import SpeculativeEngine
from engine.interfaces import Site
from engine.probe import Probe
from engine.records import Request, StepRecord
from engine.speculation import SpeculationConfig, speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG
from tests.support.engines import TinyEngine, build_engine, random_decoder
from tests.support.gates import gate
from tests.support.real_drafters import Part, medusa, random_eagle3_head
from tests.support.reference import greedy_decode

MAX_TOKENS = 40
SHAPES: dict[str, ChainShape | TreeShape] = {
    "chain": ChainShape(num_tokens=4),
    "cut chain": ChainShape(num_tokens=4, min_probability=0.05),
    "tree": TreeShape(total_nodes=24, depth=3, top_k=8),
}


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts that repeat themselves, so that copying finds something."""
    source = random.Random(3)
    phrases = [tuple(source.randrange(29) for _ in range(8)) for _ in range(count)]
    return [phrase * 3 + phrase[: 2 + index] for index, phrase in enumerate(phrases)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices: threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in prompts(3)]


def engine(config: SpeculationConfig, shape: str) -> SpeculativeEngine:
    """A tiny engine with an EAGLE-3 head."""
    head = random_eagle3_head(CONFIG)
    part = Part(Eagle3Drafter(head, SHAPES[shape]), head.projection(torch.float64))
    return engine_with(part, config)


def engine_with(part: Part, config: SpeculationConfig) -> SpeculativeEngine:
    """A tiny engine with a drafter and a probe whose gate opens now and then."""
    weight = torch.randn(36, generator=torch.Generator().manual_seed(5))
    tiny = TinyEngine(
        config=CONFIG,
        speculation=config,
        probe=Probe(weight=weight, threshold=0.5, layer=1, site=Site.ATTENTION, model_id="tiny"),
        gate=gate(),
        drafter=part.drafter,
        projection=part.projection,
    )
    return build_engine(tiny, Mesh.single())


def run(engine: SpeculativeEngine, count: int) -> tuple[list[tuple[int, ...]], list[StepRecord]]:
    """Answer ``count`` prompts together."""
    outputs: dict[str, list[int]] = {str(index): [] for index in range(count)}
    records: list[StepRecord] = []
    for index, prompt in enumerate(prompts(count)):
        engine.add(Request(request_id=str(index), prompt_ids=prompt, max_tokens=MAX_TOKENS))
    while engine.has_work:
        outcome = engine.step()
        records.extend(outcome.records)
        for event in outcome.events:
            outputs[event.request_id].extend(event.token_ids)
    return [tuple(tokens) for tokens in outputs.values()], records


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_eagle3_alone_equals_plain_decoding(
    truth: list[tuple[int, ...]], shape: str, batch: int
) -> None:
    """Catches features of rejected rows, or of another request, that would stop the drafter."""
    config = SpeculationConfig(method="eagle3", drafter="eagle3", row_budget="full")
    outputs, records = run(engine(config, shape), batch)
    assert outputs == truth[:batch]
    drafted = [record for record in records if record.source == "neural"]
    assert drafted
    if shape == "tree":
        assert sum(record.accepted for record in drafted) > 0


@pytest.mark.parametrize("threshold", [0.0, 0.5])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_switching_between_copies_and_eagle3_equals_plain_decoding(
    truth: list[tuple[int, ...]], shape: str, threshold: float
) -> None:
    """Catches pairs lost over copied steps: the drafter asserts that it has all of them."""
    config = SpeculationConfig(
        method="switch_sd",
        drafter="eagle3",
        copy_match_length=2,
        probe_threshold=threshold,
        row_budget="full",
    )
    outputs, records = run(engine(config, shape), 3)
    assert outputs == truth
    assert {"copy", "neural"} <= {record.source for record in records}
    assert not any(record.drafter_calls for record in records if record.source == "copy")
    assert all(record.drafter_calls == 1 for record in records if record.source == "neural")


@pytest.mark.parametrize("shape", list(SHAPES))
def test_merged_tries_equal_plain_decoding(truth: list[tuple[int, ...]], shape: str) -> None:
    """Time does not count without a step-time table, so that every copy is merged with a draft."""
    config = SpeculationConfig(
        method="switch_sd_plus", drafter="eagle3", copy_match_length=2, row_budget="full"
    )
    outputs, records = run(engine(config, shape), 3)
    assert outputs == truth
    merged = [record for record in records if record.source == "merged"]
    assert sum(record.accepted for record in merged) > 0
    assert all(record.drafter_calls == 1 for record in merged)


@pytest.mark.parametrize("method", ["rasd", "sam_decoding", "bandit_spec", "copy_spec"])
def test_other_methods_with_a_drafter_equal_plain_decoding(
    truth: list[tuple[int, ...]], method: str
) -> None:
    """Catches a fused tree, an arm or a fallback that loses the drafter's pairs."""
    config = speculation(method, drafter="eagle3", copy_match_length=2, row_budget="full")
    outputs, records = run(engine(config, "tree"), 3)
    assert outputs == truth
    assert any(record.drafter_calls for record in records)


@pytest.mark.parametrize("method", ["medusa", "switch_sd", "copy_spec", "switch_sd_plus", "rasd"])
def test_medusa_alone_and_behind_copies_equals_plain_decoding(
    truth: list[tuple[int, ...]], method: str
) -> None:
    """Catches heads that read another row than the one that emitted the pending token."""
    config = speculation(method, drafter="medusa", copy_match_length=2, row_budget="full")
    outputs, records = run(engine_with(medusa(CONFIG, SHAPES["tree"]), config), 3)
    assert outputs == truth
    drafted = [record for record in records if record.source in ("neural", "merged")]
    assert sum(record.accepted for record in drafted) > 0
    copying = {"copy", "merged"} & {record.source for record in records}
    assert bool(copying) == (method != "medusa")
