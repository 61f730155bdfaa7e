"""The learning rate at the steps that matter, and its shape between them."""

from __future__ import annotations

from itertools import pairwise
from math import cos, pi

import pytest

from drafters.training.config import TrainingConfig
from drafters.training.schedule import learning_rate

CONFIG = TrainingConfig(
    steps=100, learning_rate=2.0, warmup_share=0.1, min_learning_rate_ratio=0.25
)


def rates(config: TrainingConfig, total: int) -> list[float]:
    return [learning_rate(step, total, config) for step in range(total)]


def test_warm_up_rises_in_equal_steps_to_the_peak() -> None:
    assert rates(CONFIG, 100)[:10] == pytest.approx([0.2 * step for step in range(1, 11)])


def test_cosine_falls_from_the_peak_to_the_smallest_rate_at_the_last_step() -> None:
    found = rates(CONFIG, 100)
    assert max(found) == found[9] == pytest.approx(2.0)
    assert found[-1] == pytest.approx(0.5)
    assert all(later < earlier for earlier, later in pairwise(found[9:]))
    assert found[54] == pytest.approx(0.5 + 1.5 * (1 + cos(pi * 45 / 90)) / 2)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_short_runs_and_no_warm_up_have_positive_rates(total: int) -> None:
    for share in (0.0, 0.5, 1.0):
        config = TrainingConfig(steps=total, learning_rate=1.0, warmup_share=share)
        assert all(0 < rate <= 1.0 for rate in rates(config, total))


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    config = TrainingConfig(steps=10, learning_rate=1.0, warmup_share=0.0)
    assert learning_rate(0, 10, config) == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "exactly one of steps and epochs must be given, not neither"),
        ({"steps": 3, "epochs": 1}, "not both"),
        ({"steps": 0}, "steps must be an integer of at least 1, not 0"),
        ({"epochs": -1}, "epochs must be an integer of at least 1, not -1"),
        ({"steps": 1, "tokens_per_batch": 0}, "tokens_per_batch must be"),
        ({"steps": 1, "gradient_accumulation": 0}, "gradient_accumulation must be"),
        ({"steps": 1, "save_every": 0}, "save_every must be"),
        ({"steps": 1, "num_threads": 0}, "num_threads must be"),
        ({"steps": 1, "learning_rate": 0.0}, "learning_rate must be a number above 0, not 0.0"),
        ({"steps": 1, "gradient_clip": float("nan")}, "gradient_clip must be"),
        ({"steps": 1, "warmup_share": 1.5}, "warmup_share must be from 0 to 1, not 1.5"),
        ({"steps": 1, "min_learning_rate_ratio": -0.1}, "min_learning_rate_ratio must be"),
        ({"steps": 1, "weight_decay": -1.0}, "weight_decay must be"),
        ({"steps": 1, "betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"steps": 1, "dtype": "float16"}, "dtype must be one of float32, bfloat16"),
        ({"steps": 1, "backend": "fsdp"}, "backend must be one of auto, torch, zero1"),
    ],
)
def test_wrong_configurations_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingConfig(**changes)  # type: ignore[arg-type]
