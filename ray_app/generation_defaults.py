"""How a model's makers want it sampled: ``generation_config.json``, as vLLM reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.weights.model_config import read_json

_KEYS = ("temperature", "top_p")


def generation_defaults(directory: Path) -> dict[str, Any]:
    """``temperature`` and ``top_p`` where the model's files name them; a greedy model's is 0."""
    file = directory / "generation_config.json"
    if not file.is_file():
        return {}
    fields = read_json(file)
    found = {key: float(fields[key]) for key in _KEYS if fields.get(key) is not None}
    if fields.get("do_sample") is False:
        found["temperature"] = 0.0
    return found
