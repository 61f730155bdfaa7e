"""The copy-intent probe: one vector that reads from a residual state whether the model is copying.

SwitchSD (arXiv 2609.20186): p(copy) = σ(wᵀH) at one layer of the verifier, strictly linear, with no
bias and no centring of H. The file is a safetensors with the tensor ``weight`` [H] in float32;
where it is read and from which copy intent on it says "copy" stands in the file's metadata, because
a vector is meaningless at another layer or on another model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.interfaces import Site

if TYPE_CHECKING:
    from engine.models.config import ModelConfig

FORMAT = "switchsteer-probe-1"
"""Value of the metadata key ``format``."""

_KEYS = ("layer", "site", "threshold", "model", "label_shift")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """A trained probe and the one place where it may be read."""

    weight: Tensor
    """[H] float32."""
    threshold: float
    """Copy intent from which a token counts as copied, chosen by validation F1 of span labels."""
    layer: int
    """Global index of the decoder layer, from 0."""
    site: Site
    model_id: str
    """The model it was trained on, as users name it."""
    label_shift: int = 0
    """Training pairs the state of token i with the label of token i + label_shift."""
    gate_thresholds: Mapping[int, float] = field(default_factory=dict)
    """Match length to the copy intent from which copying pays, chosen by replay of validation
    answers; empty when the probe was not calibrated for copying."""

    def __post_init__(self) -> None:
        if self.weight.ndim != 1 or self.weight.dtype != torch.float32:
            raise ValueError(
                f"a probe's weight must be a float32 vector, not {self.weight.dtype} of shape "
                f"{tuple(self.weight.shape)}"
            )
        for threshold in (self.threshold, *self.gate_thresholds.values()):
            if not 0.0 <= threshold <= 1.0:
                raise ValueError(f"a probe's threshold must be from 0 to 1, not {threshold}")
        if self.layer < 0 or self.label_shift not in (0, 1):
            raise ValueError(
                f"a probe's layer must be at least 0 and its label_shift 0 or 1, not {self.layer} "
                f"and {self.label_shift}"
            )

    @property
    def hidden_size(self) -> int:
        """H, the verifier's hidden size."""
        return self.weight.numel()

    def gate_threshold(self, match_length: int) -> float:
        """The threshold of the nearest calibrated match length, else the probe's own."""
        if not self.gate_thresholds:
            return self.threshold
        nearest = min(self.gate_thresholds, key=lambda length: abs(length - match_length))
        return self.gate_thresholds[nearest]

    def score(self, hidden_RH: Tensor) -> Tensor:
        """Copy intent of every row: [R] float32 from 0 to 1."""
        return torch.sigmoid(hidden_RH.float() @ self.weight)

    def to(self, device: torch.device) -> Probe:
        """The same probe on another device."""
        return replace(self, weight=self.weight.to(device))

    def check(self, config: ModelConfig, model_id: str) -> None:
        """Raise ``ValueError`` unless the probe was trained on this model and fits it."""
        if _short_name(model_id) != _short_name(self.model_id):
            raise ValueError(
                f"the probe was trained on {self.model_id}, not on {model_id}: train one for this "
                "model with python -m launch.train probe"
            )
        if self.hidden_size != config.hidden_size:
            raise ValueError(
                f"the probe has {self.hidden_size} weights but {model_id} has hidden size "
                f"{config.hidden_size}"
            )
        if self.layer >= config.num_layers:
            raise ValueError(
                f"the probe reads layer {self.layer} but {model_id} has layers 0 to "
                f"{config.num_layers - 1}"
            )


def save_probe(probe: Probe, path: Path) -> None:
    """Write the probe with its metadata; the folder must exist."""
    metadata = {
        "format": FORMAT,
        "layer": str(probe.layer),
        "site": probe.site.value,
        "threshold": repr(probe.threshold),
        "model": probe.model_id,
        "label_shift": str(probe.label_shift),
        "gate_thresholds": json.dumps(dict(probe.gate_thresholds)),
    }
    save_file({"weight": probe.weight.contiguous()}, path, metadata=metadata)


def load_probe(path: Path) -> Probe:
    """Read a probe; raises ``ValueError`` when the file is missing or is no probe."""
    if not path.is_file():
        raise ValueError(f"there is no probe file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, set(file.keys())
            weight = file.get_tensor("weight") if "weight" in names else None
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    if metadata.get("format") != FORMAT or weight is None or not set(_KEYS) <= set(metadata):
        raise ValueError(
            f"{path} is not a probe: it needs a tensor 'weight' and the metadata format={FORMAT}, "
            + ", ".join(_KEYS)
        )
    try:
        return Probe(
            weight=weight,
            threshold=float(metadata["threshold"]),
            layer=int(metadata["layer"]),
            site=Site(metadata["site"]),
            model_id=metadata["model"],
            label_shift=int(metadata["label_shift"]),
            gate_thresholds=_gate_thresholds(metadata.get("gate_thresholds", "{}")),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a usable probe: {error}") from error


def _gate_thresholds(text: str) -> dict[int, float]:
    return {int(length): float(threshold) for length, threshold in json.loads(text).items()}


def _short_name(model_id: str) -> str:
    """The last part of a hub id, a directory or a package name: a model may have moved."""
    return model_id.rstrip("/").rpartition("/")[2].casefold()
