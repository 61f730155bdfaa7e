"""EAGLE-3 heads of every layout compute what the paper's equations say, in fp64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafters.draft_tree import ChainShape
from drafters.eagle3 import Eagle3Drafter
from drafters.eagle3_checkpoint import load_eagle3
from drafters.eagle3_head import Eagle3Head, grouped_attention
from drafters.head_cache import HeadCache
from engine.copy_source import NO_COPIES
from engine.records import SequenceView
from engine.weights import read_model_config
from tests.support.eagle3_reference import (
    ReferenceHead,
    write_raw,
    write_specforge,
    write_speculators,
)
from tests.support.tiny import LLAMA2, random_tensors, write_checkpoint

VERIFIER = replace(LLAMA2, num_layers=8, rope_theta=500000.0)
"""Default taps are (2, 4, 5); its theta is not the heads'."""

DEFAULT_TAPS = (2, 4, 5)
LENGTH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A head, and how its files are written."""

    head: ReferenceHead
    write: Callable[[Path, ReferenceHead], Path]
    taps: tuple[int, ...] = DEFAULT_TAPS


def _specforge_ids(ids: list[int]) -> dict[str, object]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}}


CASES = {
    "raw": Case(head=ReferenceHead(), write=write_raw),
    "raw, narrower than the verifier": Case(
        head=ReferenceHead(hidden=24, head_dim=6, own_embedding=True),
        write=lambda path, head: write_raw(path, head, target_hidden_size=32),
    ),
    "specforge, ids, own head_dim, fc_norm, own theta": Case(
        head=ReferenceHead(head_dim=12, fc_norm=True, theta=1e6, own_embedding=True),
        write=lambda path, head: write_specforge(
            path, head, fc_norm=True, norm_output=True, rope_theta=1e6, **_specforge_ids([0, 3, 6])
        ),
        taps=(1, 4, 7),
    ),
    "specforge, no norm before the logits": Case(
        head=ReferenceHead(norm_before_logits=False),
        write=lambda path, head: write_specforge(path, head, norm_output=False),
    ),
    "speculators, norm_before_residual, scaled rope, null ids": Case(
        head=ReferenceHead(norm_before_residual=True, theta=5e5, position_factor=2.0),
        write=lambda path, head: write_speculators(
            path,
            head,
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            norm_before_residual=True,
            norm_output=False,
            eagle_aux_hidden_state_layer_ids=None,
        ),
    ),
    "speculators, normalised state fed back, ids": Case(
        head=ReferenceHead(norm_feedback=True),
        write=lambda path, head: write_speculators(
            path, head, {}, norm_output=True, eagle_aux_hidden_state_layer_ids=[1, 3, 8]
        ),
        taps=(1, 3, 8),
    ),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices: threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("verifier"), VERIFIER)


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def loaded(case: Case, verifier: Path, tmp_path: Path) -> Eagle3Head:
    return load_eagle3(case.write(tmp_path, case.head), verifier, dtype=torch.float64)


def embedding(head: ReferenceHead) -> Tensor:
    """The head's own, else the verifier's."""
    shared = random_tensors(VERIFIER)["model.embed_tokens.weight"].double()
    return head.tensors.get("embed_tokens.weight", shared)


def states() -> Tensor:
    """[LENGTH, taps, hidden]: what the verifier's tapped layers hold, low to high."""
    generator = torch.Generator().manual_seed(1)
    shape = (LENGTH, 3, VERIFIER.hidden_size)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def token_ids() -> list[int]:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(VERIFIER.vocab_size, (LENGTH + 1,), generator=generator).tolist()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def whole_sequence(head: Eagle3Head, features: Tensor) -> Tensor:
    """One forward over all pairs, causally, as in training: [LENGTH, H]."""
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    bias = torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(~visible, -torch.inf)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return grouped_attention(query, key.transpose(0, 1), value.transpose(0, 1), bias)

    positions = torch.arange(LENGTH)
    output: Tensor = head(features, torch.tensor(token_ids()[1:]), positions, attend)
    return output


def projected(head: Eagle3Head) -> Tensor:
    """[LENGTH, H]: features as the verifier's pass sums them, tap by tap."""
    projection = head.projection(torch.float64)
    parts = [projection.partial({tap: states()[:, tap]}) for tap in range(3)]
    return torch.stack(parts).sum(0)


def test_taps_are_hidden_state_indices(case: Case, loaded: Eagle3Head) -> None:
    """Catches ids off by one: SpecForge counts layer outputs, speculators hidden states."""
    assert loaded.config.taps == case.taps
    assert loaded.projection(torch.float64).taps == case.taps


def test_features_are_those_of_the_equations(case: Case, loaded: Eagle3Head) -> None:
    """Catches columns of fc given to the wrong tap, and norms left out."""
    expected = torch.stack([case.head.feature(list(position)) for position in states()])
    close(projected(loaded), expected)
    close(loaded.fc(states()), expected)


def test_forward_over_a_sequence_is_that_of_the_equations(case: Case, loaded: Eagle3Head) -> None:
    """Catches wrong order of joined halves, residual, rotary embedding, heads, norms."""
    features = projected(loaded)
    table = embedding(case.head)
    outputs = case.head.outputs(list(features), [table[token] for token in token_ids()[1:]])
    found = whole_sequence(loaded, features)
    close(found, torch.stack(outputs))
    close(loaded.logits(found), torch.stack([case.head.logits(output) for output in outputs]))


def test_a_chain_of_four_is_that_of_the_equations(
    case: Case, loaded: Eagle3Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches wrong feedback, positions, cache and token map; every step's logits are compared."""
    features = projected(loaded)
    seen: list[Tensor] = []
    plain = loaded.logits

    def spy(hidden: Tensor) -> Tensor:
        seen.append(plain(hidden)[0].clone())
        return seen[-1].unsqueeze(0)

    monkeypatch.setattr(loaded, "logits", spy)
    view = SequenceView(
        request_id="0",
        token_ids=token_ids(),
        copies=NO_COPIES,
        max_draft_tokens=9,
        probe_score=None,
        features=features,
    )
    draft = Eagle3Drafter(loaded, ChainShape(num_tokens=4)).draft(view)
    tokens, logits = case.head.chain(list(features), token_ids(), 4, embedding(case.head))
    close(torch.stack(seen), torch.stack(logits))
    assert draft.candidates == (tuple(tokens),)
    assert draft.source == "neural"


@pytest.mark.parametrize(
    "other",
    [
        {"norm_before_residual": True},
        {"norm_before_logits": False},
        {"norm_feedback": True},
        {"theta": 500000.0},
        {"position_factor": 2.0},
    ],
    ids=str,
)
def test_every_switch_of_the_reference_changes_the_chain(other: dict[str, float]) -> None:
    """Guards the tests above: a switch without effect would compare nothing."""
    head = ReferenceHead()
    changed = replace(head, **other)  # type: ignore[arg-type]
    features = [head.feature(list(position)) for position in states()]
    table = embedding(head)
    path = head.chain(features, token_ids(), 2, table)[0]
    a = head.continue_path(features, token_ids(), path, table)[-1]
    b = changed.continue_path(features, token_ids(), path, table)[-1]
    assert (a - b).abs().max() > 1e-3


def test_the_heads_rope_is_not_the_verifiers(verifier: Path, tmp_path: Path) -> None:
    """A raw head without rope fields turns with theta 10000 whatever the verifier does."""
    head = load_eagle3(write_raw(tmp_path, ReferenceHead()), verifier, dtype=torch.float64)
    assert head.config.layer.rope_theta == 10000.0 != read_model_config(verifier).rope_theta


def test_training_time_test_with_diagonal_keys_equals_drafting(
    verifier: Path, tmp_path: Path
) -> None:
    """What training computes in parallel is what drafting computes one by one.

    Step j's row t stands at position t + j and sees the step-0 keys up to column t and column t
    of the steps after; drafting sees pairs 0 to t and then its own. Tokens are the true ones.
    """
    reference = ReferenceHead(norm_feedback=True)
    directory = write_speculators(tmp_path, reference, {}, norm_output=True)
    head = load_eagle3(directory, verifier, dtype=torch.float64)
    features, tokens = projected(head), torch.tensor(token_ids())
    steps, columns = 3, LENGTH - 2
    keys, values, found, inputs = [], [], [], features[:columns]
    causal = torch.ones(columns, columns, dtype=torch.bool).tril()
    for step in range(steps):
        visible = torch.cat([causal, *[torch.eye(columns, dtype=torch.bool)] * step], dim=1)
        bias = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)

        def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor = bias) -> Tensor:
            keys.append(key.transpose(0, 1))
            values.append(value.transpose(0, 1))
            return grouped_attention(query, torch.cat(keys, 1), torch.cat(values, 1), bias)

        positions = torch.arange(columns) + step
        output = head(inputs, tokens[1 + step : 1 + step + columns], positions, attend)
        found.append(output)
        inputs = head.next_features(output)
    for column in range(columns):
        path_features = list(features[: column + 1])
        for step in range(steps):
            known = tokens[1 : column + step + 2].tolist()
            table = embedding(reference)
            output = reference.outputs(path_features, [table[token] for token in known])[-1]
            close(found[step][column], output)
            path_features.append(reference.next_feature(output))


def test_a_cache_that_grows_keeps_what_it_held() -> None:
    """Catches a buffer that loses rows when it is replaced by a larger one."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(700, 2, 4, generator=generator)
    cache, written = HeadCache(2, 4, torch.float32), 0
    for count in (1, 5, 250, 1, 443):
        keys, values = cache.write(written, rows[written:][:count], 2 * rows[written:][:count])
        written += count
        assert torch.equal(keys, rows[:written].transpose(0, 1))
        assert torch.equal(values, 2 * rows[:written].transpose(0, 1))
