"""A Hugging Face ``config.json`` to a ``ModelConfig``; what we cannot run is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.models.config import Architecture, ModelConfig, RopeScaling
from engine.models.registry import ARCHITECTURES

_MUST_BE: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "hidden_act": ("silu", None),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
}
"""Fields that change the arithmetic, and the values that we implement; None is an absent field."""


def read_model_config(directory: Path) -> ModelConfig:
    """The shape of the model in ``directory``.

    Raises:
        ValueError: one sentence naming the file, the field, and what is allowed.
    """
    file = directory / "config.json"
    fields = read_json(file)
    _refuse_unsupported(file, fields)
    num_heads = _integer(file, fields, "num_attention_heads")
    hidden_size = _integer(file, fields, "hidden_size")
    theta, scaling = _rope(file, fields)
    try:
        return ModelConfig(
            architecture=_architecture(file, fields),
            vocab_size=_integer(file, fields, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_integer(file, fields, "intermediate_size"),
            num_layers=_integer(file, fields, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=_integer(file, fields, "num_key_value_heads", default=num_heads),
            head_dim=_integer(file, fields, "head_dim", default=hidden_size // num_heads),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
            max_position_embeddings=_integer(file, fields, "max_position_embeddings"),
            eos_token_ids=read_eos_token_ids(directory),
        )
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(file) in message else f"{file}: {message}") from error


def read_eos_token_ids(directory: Path) -> tuple[int, ...]:
    """The ids that end an answer, from ``generation_config.json`` and ``config.json`` together."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        ids = read_json(file).get("eos_token_id") if file.is_file() else None
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(found))


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``.

    Raises:
        ValueError: the file is absent or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file} is missing") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


def _architecture(file: Path, fields: dict[str, Any]) -> Architecture:
    names = fields.get("architectures") or [f"model_type {fields.get('model_type')}"]
    by_type = {architecture: architecture for architecture in ARCHITECTURES.values()}
    found = ARCHITECTURES.get(names[0]) or by_type.get(fields.get("model_type", ""))
    if found is None or (fields.get("architectures") and names[0] not in ARCHITECTURES):
        raise ValueError(
            f"{file}: architecture {names[0]} is not supported: allowed are "
            f"{', '.join(ARCHITECTURES)}"
        )
    return found


def _refuse_unsupported(file: Path, fields: dict[str, Any]) -> None:
    for name, allowed in _MUST_BE.items():
        value = fields.get(name)
        if value not in allowed:
            raise ValueError(
                f"{file}: {name}={_short(value)} is not supported: allowed is {allowed[0]}"
                + (
                    " or no such field"
                    if allowed[0] is not None
                    else " (an unquantised checkpoint)"
                )
            )
    layer_types = set(fields.get("layer_types") or ())
    if layer_types - {"full_attention"}:
        raise ValueError(
            f"{file}: layer_types={sorted(layer_types)} is not supported: allowed is full_attention"
        )


def _rope(file: Path, fields: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Both spellings: ``rope_parameters`` (new), or ``rope_theta`` and ``rope_scaling``."""
    scaling = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta", fields.get("rope_theta", 10000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=_number(file, scaling, "factor"))
    if kind != "llama3":
        raise ValueError(
            f"{file}: rope_type={kind} is not supported: allowed are default, linear, llama3"
        )
    original = "original_max_position_embeddings"
    return theta, RopeScaling(
        kind="llama3",
        factor=_number(file, scaling, "factor"),
        low_freq_factor=_number(file, scaling, "low_freq_factor"),
        high_freq_factor=_number(file, scaling, "high_freq_factor"),
        original_max_position_embeddings=_integer(file, scaling, original),
    )


def _integer(file: Path, fields: dict[str, Any], name: str, *, default: int | None = None) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{file}: {name} must be a positive integer, not {_short(value)}")
    return value


def _number(file: Path, fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{file}: {name} must be a positive number, not {_short(value)}")
    return float(value)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_layer_config(file: Path, fields: dict[str, Any], *, num_layers: int) -> ModelConfig:
    """The shape of Llama layers that ``fields`` of ``file`` describe, whatever their class's name.

    For drafters that are made of such layers and have a ``config.json`` of their own.

    Raises:
        ValueError: one sentence naming the file, the field, and what is allowed.
    """
    _refuse_unsupported(file, fields)
    num_heads = _integer(file, fields, "num_attention_heads")
    hidden_size = _integer(file, fields, "hidden_size")
    theta, scaling = _rope(file, fields)
    try:
        return ModelConfig(
            architecture="llama",
            vocab_size=_integer(file, fields, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_integer(file, fields, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_integer(file, fields, "num_key_value_heads", default=num_heads),
            head_dim=_integer(file, fields, "head_dim", default=hidden_size // num_heads),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=_integer(file, fields, "max_position_embeddings", default=2048),
        )
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(file) in message else f"{file}: {message}") from error
