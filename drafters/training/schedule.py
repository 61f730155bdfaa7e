"""The learning rate as a function of the step: linear warm-up, then a cosine.

Warm-up and cosine follow each other, as in SpecForge. SD²'s code multiplies them, which comes to
the same: its cosine starts where its warm-up ends (``setup_optim``). Being a function of the step,
the schedule has no state to save.
"""

from __future__ import annotations

from math import cos, pi

from drafters.training.config import TrainingConfig


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """The learning rate of step ``step``, the first being 0, of ``total_steps``.

    The warm-up's last step has the configured learning rate, and the run's last step the smallest.
    """
    assert 0 <= step < total_steps
    warmup_steps = round(config.warmup_share * total_steps)
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / warmup_steps
    # With a warm-up its last step is the peak, from which the cosine's first step already descends.
    first = max(0, warmup_steps - 1)
    progress = (step - first) / max(1, total_steps - 1 - first)
    floor = config.min_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)
