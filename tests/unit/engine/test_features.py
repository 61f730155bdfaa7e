"""Features: the projection's sum, in the order of committed positions, whatever is rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.features import (
    FeatureHistory,
    FeatureProjection,
    FeatureReader,
    NormedState,
    Projection,
)
from engine.interfaces import Site
from engine.models.layers import RMSNorm
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.tiny import LLAMA33
from tests.support.toy_drafter import FeatureRecorder

CONFIG = replace(LLAMA33, num_layers=3)
TAPS = (1, 2, 3)
PROMPTS = ([5, 9, 5, 9, 5], [7, 8])


def projection(width: int = 6, *, with_norms: bool = False) -> FeatureProjection:
    """Random weights for the tiny model."""
    generator = torch.Generator().manual_seed(1)
    shape = (width, CONFIG.hidden_size)
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in TAPS]
    norms = None
    if with_norms:
        device = torch.device("cpu")
        norms = tuple(
            RMSNorm(CONFIG.hidden_size, 1e-5, dtype=torch.float64, device=device) for _ in TAPS
        )
        for norm in norms:
            norm.weight.data.fill_(1.5)
    bias = torch.randn(width, generator=generator, dtype=torch.float64)
    return FeatureProjection(taps=TAPS, weights=tuple(weights), bias=bias, norms=norms)


def expected_features(token_ids: list[int], wanted: Projection) -> torch.Tensor:
    """One uncached pass over the whole sequence, layer by layer."""
    recorder = FeatureRecorder()
    tiny = TinyEngine(
        config=CONFIG, speculation=speculation("eagle3"), drafter=recorder, projection=wanted
    )
    answers(build_engine(tiny, Mesh.single()), [token_ids], max_tokens=3)
    return recorder.seen["0"][1]


@pytest.mark.parametrize(
    "wanted",
    [
        projection(),
        projection(with_norms=True),
        NormedState(tap=3, norm=projection(with_norms=True).norms[2]),  # type: ignore[index]
    ],
    ids=["raw", "normed", "last state"],
)
def test_features_of_committed_rows_equal_those_of_a_fresh_prompt(wanted: Projection) -> None:
    recorder = FeatureRecorder()
    tiny = TinyEngine(
        config=CONFIG, speculation=speculation("eagle3"), drafter=recorder, projection=wanted
    )
    found = answers(build_engine(tiny, Mesh.single()), PROMPTS, max_tokens=12)
    plain = TinyEngine(config=CONFIG)
    assert found == answers(build_engine(plain, Mesh.single()), PROMPTS, max_tokens=12)
    for token_ids, features in recorder.seen.values():
        assert len(features) == len(token_ids) - 1
        fresh = expected_features(token_ids[:-1], wanted)
        torch.testing.assert_close(features, fresh, rtol=1e-9, atol=1e-9)
    assert sorted(recorder.forgotten) == ["0", "1"]


def test_reader_sums_only_the_tapped_layers_outputs() -> None:
    wanted = replace(projection(), taps=(1, 3), weights=projection().weights[:2], bias=None)
    reader = FeatureReader(wanted)
    states = torch.randn(4, 2, CONFIG.hidden_size, dtype=torch.float64)
    for layer, hidden in enumerate(states):
        reader(layer, Site.ATTENTION, torch.full_like(hidden, torch.nan))
        reader(layer, Site.MLP, hidden)
    total = reader.finish(2, Mesh.single(), torch.float64)
    by_hand = states[0] @ wanted.weights[0].T + states[2] @ wanted.weights[1].T
    torch.testing.assert_close(total, by_hand)
    assert wanted.layers == {0, 2}


def test_history_keeps_order_while_it_grows() -> None:
    history = FeatureHistory()
    rows = torch.arange(1200.0).view(400, 3)
    for start, end in ((0, 5), (5, 6), (6, 300), (300, 400)):
        history.append(rows[start:end])
    assert history.rows is not None
    assert torch.equal(history.rows, rows)


def test_a_history_without_rows_shows_none() -> None:
    assert FeatureHistory().rows is None


def test_a_tiny_decoder_has_the_tapped_layers() -> None:
    """Guards the test above: taps beyond the model would read nothing."""
    assert max(TAPS) == len(random_decoder(CONFIG, dtype=torch.float64).layers)
