"""Whole engines over ranks: every grid gives the tokens of plain decoding, whoever decides what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.block import SequenceRows
from engine.candidates import chain
from engine.control import Verdict
from engine.engine import SpeculativeEngine
from engine.features import FeatureProjection
from engine.models.layers import Linear
from engine.records import Request
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, MAX_TOKENS, probe, repetitive_prompts
from tests.lossless.test_sampled_engine import KINDS, alone, requests, tokens
from tests.support.adversaries import Adversary
from tests.support.distributed import run_ranks
from tests.support.engines import (
    TinyEngine,
    answers,
    build_engine,
    events_of,
    random_decoder,
)
from tests.support.gates import gate
from tests.support.reference import greedy_decode
from tests.support.toy_drafter import FeatureRecorder

pytestmark = pytest.mark.ranks

GRIDS = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2)]


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding on one device by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in repetitive_prompts(4)]


def serve(mesh: Mesh, engines: list[TinyEngine], batches: list[int]) -> list[Any]:
    """One engine after another on this mesh; the coordinator returns the answers."""
    results = []
    for tiny in engines:
        engine = build_engine(tiny, mesh)
        if not engine.is_coordinator:
            engine.follow()
            continue
        engine.idle()
        for batch in batches:
            results.append(answers(engine, repetitive_prompts(4)[:batch], max_tokens=MAX_TOKENS))
        engine.stop()
    return results


@pytest.mark.parametrize(("tp", "pp"), GRIDS)
def test_every_method_on_every_grid_equals_plain_decoding(
    truth: list[tuple[int, ...]], tp: int, pp: int
) -> None:
    """Catches ranks that commit other rows, uneven heads, and probe scores that get lost."""
    engines = [
        TinyEngine(config=CONFIG, speculation=speculation(method), probe=probe(layer), gate=gate())
        for method, layer in [
            ("vanilla", 0),
            ("prompt_lookup", 1),
            ("copy_spec", 2),
            ("switch_sd", 0),
            ("switch_sd", 2),
            ("switch_sd_plus", 0),
            ("switch_sd_plus", 2),
        ]
    ]
    coordinator = (pp - 1) * tp
    results = run_ranks(serve, tp, pp, engines, [1, 3])[coordinator]
    assert results == [truth[:1], truth[:3]] * len(engines)


def sample(mesh: Mesh, kinds: list[str], method: str) -> list[Any]:
    """Seeded requests of several kinds on this mesh; the coordinator returns the answers."""
    tiny = TinyEngine(config=CONFIG, speculation=speculation(method), probe=probe())
    engine = build_engine(tiny, mesh)
    if not engine.is_coordinator:
        engine.follow()
        return []
    results = [events_of(engine, requests(KINDS[kind])) for kind in kinds]
    engine.stop()
    return [[tokens(events) for events in found] for found in results]


@pytest.mark.parametrize(("tp", "pp"), GRIDS)
def test_seeded_requests_get_the_same_tokens_on_every_grid(tp: int, pp: int) -> None:
    """Catches vocabulary shards put together in the wrong order: 29 ids divide by no grid."""
    kinds = ["warm", "nucleus", "penalised"]
    results = run_ranks(sample, tp, pp, kinds, "copy_spec")[(pp - 1) * tp]
    assert results == [alone(KINDS[kind]) for kind in kinds]


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_adversarial_drafters_on_ranks_do_not_change_the_output(
    truth: list[tuple[int, ...]], tp: int, pp: int
) -> None:
    """Only the coordinator's drafts count: other ranks never ask their drafter."""
    known = {str(index): answer for index, answer in enumerate(truth)}
    engines = [
        TinyEngine(
            config=CONFIG,
            policy=Adversary(kind=kind, answers=known, vocab_size=CONFIG.vocab_size),
            speculation=speculation("vanilla", row_budget="full"),
        )
        for kind in ("duplicates", "mixed")
    ]
    results = run_ranks(serve, tp, pp, engines, [4])[(pp - 1) * tp]
    assert results == [truth, truth]


FEATURES = FeatureProjection(
    taps=(1, 2, CONFIG.num_layers),
    weights=tuple(
        torch.randn(
            5,
            CONFIG.hidden_size,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(tap),
        )
        for tap in range(3)
    ),
    bias=torch.arange(5, dtype=torch.float64),
)


def shown_features(mesh: Mesh, prompts: list[tuple[int, ...]]) -> list[Any]:
    """The answers, and every request's features as the drafter saw them last."""
    drafter = FeatureRecorder()
    method = speculation("switch_sd", drafter="eagle3")
    tiny = TinyEngine(
        config=CONFIG, speculation=method, probe=probe(1), drafter=drafter, projection=FEATURES
    )
    engine = build_engine(tiny, mesh)
    if not engine.is_coordinator:
        engine.follow()
        return []
    found = answers(engine, prompts, max_tokens=MAX_TOKENS)
    engine.stop()
    return [found, drafter.seen]


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (1, 3), (2, 2)])
def test_features_are_summed_over_stages_and_drafts_change_nothing(
    truth: list[tuple[int, ...]], tp: int, pp: int
) -> None:
    """Catches a stage whose product is lost or added twice, and collectives out of step."""
    prompts = repetitive_prompts(4)
    found, seen = run_ranks(shown_features, tp, pp, prompts)[(pp - 1) * tp]
    expected, alone = shown_features(Mesh.single(), prompts)
    assert found == expected == truth
    assert set(seen) == set(alone) != set()
    for name, (token_ids, features) in seen.items():
        assert token_ids == alone[name][0]
        torch.testing.assert_close(features, alone[name][1], rtol=1e-9, atol=1e-9)


def disagreeing_logits(mesh: Mesh, prompt: tuple[int, ...]) -> list[int]:
    """Rank 1 of a vocabulary tie adds noise; both ranks report the tokens they committed."""
    engine = build_engine(TinyEngine(config=CONFIG), mesh)
    head = engine._runner.model.head
    assert isinstance(head, Linear)
    head.weight.data.fill_(0.25)  # every logit ties: the lowest id must win
    if mesh.tp_rank == 1:
        head.weight.data.mul_(1 + 1e-9)
    if not engine.is_coordinator:
        engine.follow()
        return [num_committed(engine)]
    engine.add(Request(request_id="r", prompt_ids=prompt, max_tokens=6))
    tokens: list[int] = []
    while engine.has_work:
        for event in engine.step().events:
            tokens.extend(event.token_ids)
    engine.stop()
    return [*tokens, num_committed(engine)]


def num_committed(engine: SpeculativeEngine) -> int:
    """Entries of slot 0's first layer and head."""
    return int(engine._runner.kv.keys[0, 0, 0].abs().sum(-1).gt(0).sum())


def test_ranks_that_compute_different_logits_commit_the_same_tokens() -> None:
    """Catches recomputed verdicts: ranks with last-bit differences would diverge and hang."""
    coordinator, follower = run_ranks(disagreeing_logits, 2, 1, (3, 4, 5))
    # Six tokens: the sixth is never run, and the step that ends a request is never committed.
    assert coordinator[-1] == follower[-1] == 3 + 4


def own_rows_only(mesh: Mesh) -> bool:
    """A follower executes the verdict it gets, whatever it would have drafted itself."""
    engine = build_engine(TinyEngine(config=CONFIG), mesh)
    rows = SequenceRows(0, 0, chain([1, 2, 3]), wants_all=True)
    if mesh.is_coordinator:
        engine._control.send(Verdict(step=1, rows=(rows,)))
        engine._runner.execute(Verdict(step=1, rows=(rows,)))
        engine.stop()
        return True
    engine.follow()
    return bool(engine._runner.kv.scratch_keys[:, :3].abs().sum() > 0)


def test_followers_run_the_coordinators_rows() -> None:
    """The message alone tells a follower what to run."""
    assert run_ranks(own_rows_only, 2, 1) == [True, True]
