"""Distributions against slow and obvious versions; inputs keep their values; errors are named."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import SamplingParams, bias, distribution, forbid, penalise

LOGITS = st.lists(st.integers(-40, 40).map(lambda tenth: tenth / 10), min_size=2, max_size=12)


def slow_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """Sort, cut, renormalise, with plain lists."""
    weights = [math.exp(value / params.temperature) for value in logits]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    least = params.min_p * max(shares)
    shares = [share if share >= least else 0.0 for share in shares]
    if params.top_k:
        smallest = sorted(shares, reverse=True)[: params.top_k][-1]
        shares = [share if share >= smallest else 0.0 for share in shares]
    left = sum(shares)
    kept, reached = [0.0] * len(shares), 0.0
    for index in sorted(range(len(shares)), key=lambda i: -shares[i]):
        if params.top_p < 1 and reached >= params.top_p * left:
            break
        kept[index] = shares[index]
        reached += shares[index]
    return [share / sum(kept) for share in kept]


@settings(deadline=None, max_examples=150)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(0, 5),
    top_p=st.sampled_from([0.33, 0.71, 1.0]),
    min_p=st.sampled_from([0.0, 0.17]),
)
def test_distribution_equals_the_slow_one(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Up to ties at a boundary, where either may stay: values are compared in order."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = torch.tensor(logits)
    found = distribution(row, params)
    assert torch.equal(row, torch.tensor(logits)), "the input keeps its values"
    expected = sorted(slow_distribution(logits, params))
    assert sorted(found.tolist()) == pytest.approx(expected, abs=1e-6)
    assert float(found.sum()) == pytest.approx(1.0)


def test_a_nucleus_wider_than_the_first_look_is_whole() -> None:
    flat = torch.zeros(5000)
    found = distribution(flat, SamplingParams(temperature=1.0, top_p=0.5001))
    assert int((found > 0).sum()) == 2501


@pytest.mark.parametrize("seen", [{0, 2}, set()])
def test_penalties_by_hand(seen: set[int]) -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    row = torch.tensor([4.0, -1.0, -2.0, 0.5])
    found = penalise(row, params, seen, Counter([3, 3, 2]))
    repeated = [2.0, -1.0, -4.0, 0.5] if seen else row.tolist()
    expected = [repeated[0], repeated[1], repeated[2] - 0.75, repeated[3] - 1.0]
    assert found.tolist() == expected
    assert row.tolist() == [4.0, -1.0, -2.0, 0.5]


def test_forbidding_and_biasing_leave_the_row_alone() -> None:
    row = torch.tensor([1.0, 2.0, 3.0])
    assert forbid(row, {1, 99}).tolist() == [1.0, -math.inf, 3.0]
    assert bias(row, [(0, 5.0), (2, -1.0)]).tolist() == [6.0, 2.0, 2.0]
    assert row.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be 0 or more and at most 100"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"top_k": -1}, "top_k is -1; it must be 0 or more"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be above 0"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5"),
        ({"frequency_penalty": -3.0}, "frequency_penalty is -3.0"),
        ({"logprobs": 21}, "logprobs is 21; it must be 0 or more and at most 20"),
    ],
)
def test_impossible_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        SamplingParams(**values)


@pytest.mark.parametrize(
    ("params", "needs_logits", "is_shaped"),
    [
        (SamplingParams(), False, False),
        (SamplingParams(top_p=0.5, top_k=3, min_p=0.1, seed=4), False, False),
        (SamplingParams(logprobs=0), True, False),
        (SamplingParams(temperature=0.1), True, True),
        (SamplingParams(min_tokens=1), True, True),
        (SamplingParams(bad_words=((1,),)), True, True),
        (SamplingParams(grammar="{}"), True, True),
    ],
)
def test_logits_are_asked_for_only_where_they_matter(
    params: SamplingParams, *, needs_logits: bool, is_shaped: bool
) -> None:
    """Greedy requests keep the arg-max that is never gathered, whatever top_p says."""
    assert (params.needs_logits, params.is_shaped) == (needs_logits, is_shaped)
