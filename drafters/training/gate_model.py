"""Fits of the gate of SwitchSD+: the benefit probe, the trees of first tokens, and deeper nodes.

The probe learns whether a copy pays (``GateData.pays``). Its logits on the rows it was fitted on
are better than on new ones, and trees that saw those would trust it too much; so the informed trees
get logits of probes that were each fitted on the other half of the prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from drafters.training.benefit import NOTHING_COMMON, Flags, Floats, GateData, Integers
from drafters.training.logistic import auc, fit_logistic
from engine.boosted_trees import BoostedTrees
from engine.gate import CopyModel, logit
from engine.gate_features import Above, RecentCopies, common_features


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFit:
    """How the models are fitted."""

    penalty: float = 1e-2
    """L2 penalty of the probe."""
    num_trees: int = 60
    tree_depth: int = 4
    learning_rate: float = 0.15
    min_leaf: int = 50
    """Branches in a leaf at least."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_trees", "tree_depth", "min_leaf"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.penalty < 0 or not 0 < self.learning_rate <= 1:
            raise ValueError("penalty must be at least 0 and learning_rate above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenefitProbe:
    """A probe's weight, its quality, and its logits where the trees learn from them."""

    weight: Tensor
    """[H] float32."""
    auc: float
    """Of benefit, on the validation steps."""
    logits: Floats
    """[S]: cross-fitted on training steps, the probe's own on validation steps."""


def fit_probe(states_SH: Tensor, data: GateData, validation: Flags, fit: GateFit) -> BenefitProbe:
    """The benefit probe at one point; ``validation`` [S] marks the steps that only check it."""
    states_SH, pays = states_SH.float(), torch.from_numpy(data.pays).float()
    training = torch.from_numpy(~validation)
    is_odd = torch.from_numpy(data.transcripts % 2 == 1)

    def weight_of(steps: Tensor) -> Tensor:
        return fit_logistic(states_SH[steps], pays[steps], penalty=fit.penalty)

    weight = weight_of(training)
    halves = weight_of(training & is_odd), weight_of(training & ~is_odd)
    crossed = torch.where(is_odd, states_SH @ halves[1], states_SH @ halves[0])
    logits = torch.where(training, crossed, states_SH @ weight)
    checked = ~training
    return BenefitProbe(
        weight=weight,
        auc=auc(logits[checked], pays[checked]),
        logits=logits.double().numpy(),
    )


def fit_copies(data: GateData, steps: Flags, logits: Floats | None, fit: GateFit) -> CopyModel:
    """Acceptance of first tokens and of deeper ones, from ``steps`` [S]; None: without a probe."""
    rows = data.first
    if logits is not None:
        rows = np.concatenate([rows, logits[data.first_step][:, None]], axis=1)
    chosen = data.of_branches(steps)
    first = _trees(rows[chosen], data.first_right[chosen], fit)
    logits_of_first = first.logits(rows)
    likeliest = _likeliest(logits_of_first, data)
    pays = _trees(rows[likeliest][steps], data.pays[steps], fit)
    further = _with_common(data, logits_of_first, pays.logits(rows[likeliest]))
    nodes = data.of_nodes(steps)
    weights, bias = _logistic(further[nodes], data.further_right[nodes])
    return CopyModel(first=first, pays=pays, further_weights=weights, further_bias=bias)


def _likeliest(logits: Floats, data: GateData) -> Integers:
    """[S]: each step's branch with the highest logit; branches lie together by step."""
    order = np.lexsort((logits, data.first_step))
    last = np.append(np.diff(data.first_step[order]) > 0, True)
    found: Integers = order[last]
    return found


def _with_common(data: GateData, first: Floats, pays: Floats) -> Floats:
    """The deeper nodes' features with what the nodes below a first-level branch have in common."""
    branches = data.further_branch
    steps = data.first_step[branches]
    rows = zip(
        data.recent_tokens[steps].tolist(),
        first[branches].tolist(),
        pays[steps].tolist(),
        strict=True,
    )
    common = np.array(
        [common_features(RecentCopies(tokens=recent), Above(one, two)) for recent, one, two in rows]
    ).reshape(-1, len(NOTHING_COMMON))
    found: Floats = data.further.copy()
    found[:, -len(NOTHING_COMMON) :] = common
    return found


def _trees(rows: Floats, right: Flags, fit: GateFit) -> BoostedTrees:
    model = GradientBoostingClassifier(
        n_estimators=fit.num_trees,
        max_depth=fit.tree_depth,
        learning_rate=fit.learning_rate,
        min_samples_leaf=fit.min_leaf,
        subsample=0.5,
        random_state=fit.seed,
    ).fit(rows, right)
    trees = [estimator.tree_ for estimator in model.estimators_[:, 0]]
    shape = (len(trees), max(tree.node_count for tree in trees))
    features, thresholds = np.zeros(shape, dtype=np.int64), np.full(shape, np.inf)
    children = np.tile(np.arange(shape[1]), (2, shape[0], 1))
    values = np.zeros(shape)
    for index, tree in enumerate(trees):
        count = tree.node_count
        for side, following in enumerate((tree.children_left, tree.children_right)):
            children[side, index, :count] = np.where(following < 0, np.arange(count), following)
        features[index, :count] = np.maximum(tree.feature, 0)
        thresholds[index, :count] = tree.threshold
        values[index, :count] = fit.learning_rate * tree.value[:, 0, 0]
    return BoostedTrees(
        prior=logit(float(right.mean())),
        features=features,
        thresholds=thresholds,
        children=children,
        values=values,
        depth=max(tree.max_depth for tree in trees),
    )


def _logistic(rows: Floats, right: Flags) -> tuple[tuple[float, ...], float]:
    """Weights of the raw features and bias."""
    scaler = StandardScaler().fit(rows)
    model = LogisticRegression(max_iter=500).fit(scaler.transform(rows), right)
    weights = model.coef_[0] / scaler.scale_
    return tuple(weights.tolist()), float(model.intercept_[0] - weights @ scaler.mean_)
