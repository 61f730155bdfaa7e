"""The gate of SwitchSD+: how likely each token of a copy is to be accepted.

Boosted trees rate the branches of the copy trie's first level, and from the likeliest one whether
the copies pay; a logistic regression rates every deeper node given that its parent was right. The
product along a path is the chance to get there, and the sum over the trie the expected number of
accepted tokens. All were fitted on recorded answers, once with the logit of a probe that was
trained on benefit (``drafters/training/benefit.py``) and once without, for streams whose hidden
states nobody reads.

The file is a safetensors; what is no tensor stands in its metadata.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.boosted_trees import BoostedTrees, Floats, Forest
from engine.gate_features import (
    FIRST_FEATURES,
    FURTHER_FEATURES,
    CommonFeatures,
    NodeFeatures,
)
from engine.interfaces import Site
from engine.probe import Probe

FORMAT = "switchsteer-gate-1"
"""Value of the metadata key ``format``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopyModel:
    """Acceptance of copies, given the features of ``engine/gate_features.py``."""

    first: BoostedTrees
    """Of a branch of the first level."""
    pays: BoostedTrees
    """Of three tokens or more, from the features of the likeliest branch."""
    further_weights: tuple[float, ...]
    """Of a deeper node given its parent, in the order of ``FURTHER_FEATURES``."""
    further_bias: float
    _forest: Forest = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_forest", Forest((self.first, self.pays)))
        if len(self.further_weights) != len(FURTHER_FEATURES):
            raise ValueError(
                f"a gate needs {len(FURTHER_FEATURES)} weights of deeper nodes, not "
                f"{len(self.further_weights)}"
            )

    def first_level(self, rows_RF: Floats) -> tuple[list[float], float]:
        """Logits of the branches [R, F] of a step, and the logit that its copies pay."""
        first, pays = self._forest.logits(rows_RF)
        return first.tolist(), float(pays[first.argmax()])

    def common_logit(self, features: CommonFeatures) -> float:
        """What all nodes below a first-level branch have in common, the bias included."""
        *_, recent, above, below, pays = self.further_weights
        recent_value, above_value, below_value, pays_value = features
        return (
            self.further_bias
            + recent * recent_value
            + above * above_value
            + below * below_value
            + pays * pays_value
        )

    def node_probability(self, features: NodeFeatures, common_logit: float) -> float:
        """That a node is right where its parent was."""
        length, depth, share, branches, *_ = self.further_weights
        length_value, depth_value, share_value, branches_value = features
        return sigmoid(
            common_logit
            + length * length_value
            + depth * depth_value
            + share * share_value
            + branches * branches_value
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gate:
    """The benefit probe and the two models, with it and without."""

    probe: Probe
    """Trained on benefit: its score is the chance that a copy pays."""
    informed: CopyModel
    """Knows the probe's logit."""
    blind: CopyModel
    """Does not."""

    def model(self, *, has_probe: bool) -> CopyModel:
        """The model for steps with or without a probe score."""
        return self.informed if has_probe else self.blind


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    if logit < 0:
        return math.exp(logit) / (1.0 + math.exp(logit))
    return 1.0 / (1.0 + math.exp(-logit))


def logit(probability: float) -> float:
    """The inverse; finite also at 0 and 1."""
    kept = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(kept / (1.0 - kept))


def save_gate(gate: Gate, path: Path) -> None:
    """Write the gate; the folder must exist."""
    tensors = {"probe": gate.probe.weight.contiguous()}
    for name in ("informed", "blind"):
        tensors |= _tensors_of(getattr(gate, name), name)
    metadata = {
        "format": FORMAT,
        "layer": str(gate.probe.layer),
        "site": gate.probe.site.value,
        "model": gate.probe.model_id,
        "first_features": json.dumps(FIRST_FEATURES),
        "further_features": json.dumps(FURTHER_FEATURES),
    }
    save_file(tensors, path, metadata=metadata)


def load_gate(path: Path) -> Gate:
    """Read a gate.

    Raises:
        ValueError: the file is missing, is no gate, or was trained for other features.
    """
    if not path.is_file():
        raise ValueError(f"there is no gate file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    features = json.dumps(FIRST_FEATURES), json.dumps(FURTHER_FEATURES)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a gate: its metadata lack format={FORMAT}")
    if (metadata.get("first_features"), metadata.get("further_features")) != features:
        raise ValueError(
            f"{path} was trained for other features than this version's: train it again with "
            "python -m launch.train gate"
        )
    try:
        probe = Probe(
            weight=tensors["probe"],
            threshold=0.5,
            layer=int(metadata["layer"]),
            site=Site(metadata["site"]),
            model_id=metadata["model"],
        )
        models = {name: _model(tensors, name) for name in ("informed", "blind")}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a usable gate: {error}") from error
    return Gate(probe=probe, **models)


def _tensors_of(model: CopyModel, name: str) -> dict[str, Tensor]:
    further = torch.tensor([*model.further_weights, model.further_bias], dtype=torch.float64)
    return {
        f"{name}.further": further,
        **_tensors_of_trees(model.first, f"{name}.first"),
        **_tensors_of_trees(model.pays, f"{name}.pays"),
    }


def _tensors_of_trees(trees: BoostedTrees, name: str) -> dict[str, Tensor]:
    return {
        f"{name}.features": torch.from_numpy(trees.features),
        f"{name}.thresholds": torch.from_numpy(trees.thresholds),
        f"{name}.children": torch.from_numpy(trees.children),
        f"{name}.values": torch.from_numpy(trees.values),
        f"{name}.prior": torch.tensor([trees.prior], dtype=torch.float64),
        f"{name}.depth": torch.tensor([trees.depth]),
    }


def _model(tensors: dict[str, Tensor], name: str) -> CopyModel:
    *weights, bias = tensors[f"{name}.further"].tolist()
    return CopyModel(
        first=_trees(tensors, f"{name}.first"),
        pays=_trees(tensors, f"{name}.pays"),
        further_weights=tuple(weights),
        further_bias=bias,
    )


def _trees(tensors: dict[str, Tensor], name: str) -> BoostedTrees:
    return BoostedTrees(
        prior=float(tensors[f"{name}.prior"]),
        features=tensors[f"{name}.features"].numpy(),
        thresholds=tensors[f"{name}.thresholds"].numpy(),
        children=tensors[f"{name}.children"].numpy(),
        values=tensors[f"{name}.values"].numpy(),
        depth=int(tensors[f"{name}.depth"]),
    )
