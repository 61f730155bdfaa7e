"""Sampled output has exactly the verifier's distribution, whatever was drafted and how.

Horizons go beyond the lookahead: a bonus token drawn from the drafter shows only there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.candidates import TokenTree, chain, merge_candidates
from engine.verification import accept_or_resample, race, verify
from tests.support.chi_square import ALARM, p_value
from tests.support.table_model import TableModel, random_table

TRIALS = 200_000
WALKS = 8_000
VOCAB = 4
PAIRS = [(1, 2), (3, 4), (5, 6)]


def exponential(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)


def histogram(tokens: Tensor, size: int = 8) -> NDArray[np.int64]:
    return np.bincount(tokens.numpy(), minlength=size)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_race_draws_from_its_distribution(seed: int) -> None:
    p = random_table(8, seed).rows[0]
    noise = exponential(torch.Generator().manual_seed(seed), TRIALS, 8)
    assert p_value(histogram(race(p.expand(TRIALS, 8), noise)), p.numpy()) > ALARM


@pytest.mark.parametrize(("target", "drafter"), [*PAIRS, (1, 1)])
def test_rejection_emits_the_target_whoever_proposed(target: int, drafter: int) -> None:
    """Also with equal distributions, where everything is accepted."""
    p, q = random_table(8, target).rows[0], random_table(8, drafter).rows[0]
    generator = torch.Generator().manual_seed(9)
    proposed = race(q.expand(TRIALS, 8), exponential(generator, TRIALS, 8))
    uniform = torch.rand(TRIALS, dtype=torch.float64, generator=generator)
    before = p.clone(), q.clone()
    accepted, tokens = accept_or_resample(
        p.expand(TRIALS, 8),
        q.expand(TRIALS, 8),
        proposed,
        uniform,
        exponential(generator, TRIALS, 8),
    )
    assert p_value(histogram(tokens), p.numpy()) > ALARM
    overlap = float(torch.minimum(p, q).sum())
    assert abs(float(accepted.double().mean()) - overlap) < 0.01
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])


def test_an_impossible_proposal_is_never_accepted() -> None:
    """vllm-ascend#2881's class: a token of probability 0 must not come through at u = 0."""
    p, q = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    accepted, token = accept_or_resample(
        p, q, torch.tensor([0]), torch.zeros(1).double(), torch.ones(1, 2).double()
    )
    assert not accepted.item()
    assert token.item() == 1


@pytest.mark.parametrize("kind", ["accepts too often", "target instead of residual"])
def test_wrong_rules_are_caught(kind: str) -> None:
    """The test itself has teeth: mistakes seen in public code fail it."""
    p, q = random_table(8, 1).rows[0], random_table(8, 2).rows[0]
    generator = torch.Generator().manual_seed(9)
    proposed = race(q.expand(TRIALS, 8), exponential(generator, TRIALS, 8))
    uniform = torch.rand(TRIALS, dtype=torch.float64, generator=generator)
    noise = exponential(generator, TRIALS, 8)
    if kind == "accepts too often":
        uniform = 0.95 * uniform
    accepted, tokens = accept_or_resample(
        p.expand(TRIALS, 8), q.expand(TRIALS, 8), proposed, uniform, noise
    )
    if kind == "target instead of residual":
        tokens = torch.where(accepted, proposed, race(p.expand(TRIALS, 8), noise))
    assert p_value(histogram(tokens), p.numpy()) < ALARM


Rule = Callable[[TableModel, TableModel, int, int, np.random.Generator], list[int]]
"""One step behind a token with so many draft tokens: the output tokens."""


def copied_chain(
    target: TableModel, drafter: TableModel, last: int, depth: int, random: np.random.Generator
) -> list[int]:
    """Drafts that nobody drew: the drafter's arg-max."""
    draft = [last]
    for _ in range(depth):
        draft.append(int(drafter.rows[draft[-1]].argmax()))
    return _walk(chain(draft), target, random)


def copied_trie(
    target: TableModel, drafter: TableModel, last: int, depth: int, random: np.random.Generator
) -> list[int]:
    """Several candidates at once: all of some lengths, in an order that depends on the drafter."""
    order = drafter.rows[last].argsort().tolist()
    candidates = [[token, *order[: depth - 1]] for token in order[1:]]
    return _walk(merge_candidates(last, candidates, 99), target, random)


def coupled_chain(
    target: TableModel, drafter: TableModel, last: int, depth: int, random: np.random.Generator
) -> list[int]:
    """Drafts drawn with the very noise that will choose the verifier's tokens."""
    noise = [_noise(random) for _ in range(depth + 1)]
    draft = [last]
    for position in range(depth):
        draft.append(int(race(drafter.rows[draft[-1]], noise[position])))
    tree = chain(draft)
    tokens = tree.token_ids
    output = verify(tree, lambda node: int(race(target.rows[tokens[node]], noise[node])))
    return list(output.output_tokens)


def rejected_chain(
    target: TableModel, drafter: TableModel, last: int, depth: int, random: np.random.Generator
) -> list[int]:
    """Drafts drawn from the drafter, accepted with min(1, p / q)."""
    draft = [last]
    for _ in range(depth):
        draft.append(int(race(drafter.rows[draft[-1]], _noise(random))))

    def next_token(node: int) -> int:
        p = target.rows[draft[node]]
        if node == depth:
            return int(race(p, _noise(random)))
        q, proposed = drafter.rows[draft[node]], torch.tensor(draft[node + 1])
        uniform = torch.tensor(random.random(), dtype=torch.float64)
        return int(accept_or_resample(p, q, proposed, uniform, _noise(random))[1])

    return list(verify(chain(draft), next_token).output_tokens)


def _walk(tree: TokenTree, target: TableModel, random: np.random.Generator) -> list[int]:
    tokens = tree.token_ids
    found = verify(tree, lambda node: int(race(target.rows[tokens[node]], _noise(random))))
    return list(found.output_tokens)


def _noise(random: np.random.Generator) -> Tensor:
    return torch.from_numpy(random.standard_exponential(VOCAB))


@pytest.mark.parametrize("rule", [copied_chain, copied_trie, coupled_chain, rejected_chain])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("target", "drafter"), PAIRS[:2])
def test_joint_distribution_beyond_the_lookahead(
    rule: Rule, depth: int, target: int, drafter: int
) -> None:
    """The first depth + 2 tokens of whole walks, step after step, against the exact joint."""
    assert joint_p_value(rule, depth, target, drafter) > ALARM


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_bonus_token_of_the_drafter_is_caught(depth: int) -> None:
    """The mistake that tests with a short horizon miss."""

    def wrong(
        target: TableModel, drafter: TableModel, last: int, depth: int, random: np.random.Generator
    ) -> list[int]:
        output = rejected_chain(target, drafter, last, depth, random)
        if len(output) == depth + 1:
            output[-1] = int(race(drafter.rows[output[-2]], _noise(random)))
        return output

    assert joint_p_value(wrong, depth, 1, 2) < ALARM


def joint_p_value(rule: Rule, depth: int, target: int, drafter: int) -> float:
    model, draft_model = random_table(VOCAB, target), random_table(VOCAB, drafter)
    random = np.random.default_rng(100 * depth + target)
    length = depth + 2
    counts = np.zeros([VOCAB] * length, dtype=np.int64)
    for _ in range(WALKS):
        output: list[int] = [0]
        while len(output) <= length:
            output += rule(model, draft_model, output[-1], depth, random)
        counts[tuple(output[1 : length + 1])] += 1
    return p_value(counts, model.joint(0, length))
