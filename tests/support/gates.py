"""Hand-made gates."""

from __future__ import annotations

import numpy as np
import torch

from engine.boosted_trees import BoostedTrees
from engine.gate import CopyModel, Gate
from engine.gate_features import FIRST_FEATURES, FURTHER_FEATURES
from engine.interfaces import Site
from engine.probe import Probe


def stump(feature: int, threshold: float, *, low: float, high: float) -> BoostedTrees:
    """One tree with one question: the logit is ``high`` above the threshold, else ``low``."""
    return BoostedTrees(
        prior=0.0,
        features=np.array([[feature, 0, 0]]),
        thresholds=np.array([[threshold, np.inf, np.inf]]),
        children=np.array([[[1, 1, 2]], [[2, 1, 2]]]),
        values=np.array([[0.0, low, high]]),
        depth=1,
    )


def copy_model(first: BoostedTrees | None = None, *, further: float = 2.0) -> CopyModel:
    """By default long matches are believed; deeper tokens always by ``further`` (a logit)."""
    by_length = stump(FIRST_FEATURES.index("match_length"), 1.0, low=-2.0, high=2.0)
    return CopyModel(
        first=first or by_length,
        pays=stump(FIRST_FEATURES.index("match_length"), 1.0, low=-1.0, high=1.0),
        further_weights=(0.0,) * len(FURTHER_FEATURES),
        further_bias=further,
    )


def gate(hidden_size: int = 36, *, layer: int = 1, model_id: str = "tiny") -> Gate:
    """A gate with a random probe, whose informed model follows the probe alone."""
    generator = torch.Generator().manual_seed(7)
    follows_probe = stump(len(FIRST_FEATURES), 0.0, low=-3.0, high=3.0)
    return Gate(
        probe=Probe(
            weight=torch.randn(hidden_size, generator=generator),
            threshold=0.5,
            layer=layer,
            site=Site.MLP,
            model_id=model_id,
        ),
        informed=copy_model(follows_probe),
        blind=copy_model(),
    )
