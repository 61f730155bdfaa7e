"""The shape of an EAGLE-3 head, read from any of the three public layouts of ``config.json``.

* raw (SafeAILab/EAGLE, ``LlamaForCausalLM``): flat, often without rope fields: then theta 10000;
* SpecForge and SGLang (``LlamaForCausalLMEagle3``): flat; ids in ``eagle_config`` count layer
  outputs from 0, so they are one less than ours; ``norm_output`` is the norm before the logits;
* speculators and vLLM (``transformer_layer_config``, or flat as ``Eagle3LlamaForCausalLM``): ids
  are ours already; ``norm_output`` feeds the normalised state back.

Taps are Hugging Face's ``hidden_states`` indices throughout (``engine.features``). Sources:
SafeAILab/EAGLE eagle/model/cnets.py, sgl-project/SpecForge llama3_eagle.py (in
specforge/modeling/draft), vllm-project/speculators src/speculators/models/eagle3/core.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.models.config import ModelConfig
from engine.weights.model_config import read_json, read_layer_config

Layout = Literal["raw", "specforge", "vllm"]

ARCHITECTURES: dict[str, Layout] = {
    "LlamaForCausalLM": "raw",
    "LlamaForCausalLMEagle3": "specforge",
    "Eagle3LlamaForCausalLM": "vllm",
}
"""What flat layouts call the head."""

NESTED = "transformer_layer_config"
TAP_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """One decoder layer between a feature projection and a head over the draft vocabulary."""

    layer: ModelConfig
    """The head's own layer, rotary embedding and norms; ``vocab_size`` is the verifier's."""
    draft_vocab_size: int
    target_hidden_size: int
    """Width of the verifier's states."""
    taps: tuple[int, ...]
    """In the order of ``fc``'s columns."""
    norm_before_residual: bool = False
    """Whether the attention is added to the normalised feature; else to the raw one."""
    norm_before_logits: bool = True
    """Whether the final norm comes before the logits (SpecForge's ``norm_output``)."""
    norm_feedback: bool = False
    """Whether the state is fed back normalised (speculators' ``norm_output``)."""
    fc_norm: bool = False
    """Whether each tapped state is normalised before ``fc``."""
    has_embedding: bool = False
    """Whether the head has a token embedding of its own; else it uses the verifier's."""

    def __post_init__(self) -> None:
        if not 0 < self.draft_vocab_size <= self.layer.vocab_size:
            raise ValueError(
                f"draft_vocab_size={self.draft_vocab_size} is out of range: allowed are 1 to "
                f"{self.layer.vocab_size} (vocab_size)"
            )
        if len(set(self.taps)) != len(self.taps) or min(self.taps, default=0) < 1:
            raise ValueError(
                f"the head reads the hidden states {list(self.taps)}: allowed are different "
                "indices of 1 or more"
            )


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The low, middle and high state that all three projects read unless told otherwise."""
    return 2, num_layers // 2, num_layers - 3


def read_eagle3_config(directory: Path, verifier: ModelConfig) -> Eagle3Config:
    """The shape of the head in ``directory``, which must fit the verifier.

    Whether the head has its own embedding is known from its tensors only: ``load_eagle3`` fills it.

    Raises:
        ValueError: one sentence naming the file, the field, and what is allowed.
    """
    file = directory / "config.json"
    fields = read_json(file)
    layout = _layout(file, fields)
    _refuse_unsupported(file, fields)
    inner = fields.get(NESTED, fields)
    layer = read_layer_config(file, inner, num_layers=1)
    try:
        config = Eagle3Config(
            layer=layer,
            draft_vocab_size=_size(fields, "draft_vocab_size", default=layer.vocab_size),
            target_hidden_size=_size(fields, "target_hidden_size", default=layer.hidden_size),
            taps=_taps(fields) or default_taps(verifier.num_layers),
            norm_before_residual=_flag(fields, "norm_before_residual", default=False),
            fc_norm=_flag(fields, "fc_norm", default=False),
            **_norm_output(fields, layout),
        )
        _check_fit(config, verifier)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return config


def write_eagle3_config(config: Eagle3Config) -> dict[str, Any]:
    """``config.json`` in SpecForge's layout, which SGLang reads.

    ``norm_before_residual`` is vLLM's key, ``norm_feedback`` ours: SpecForge's heads have neither.
    """
    layer = config.layer
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_kv_heads,
        "head_dim": layer.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": layer.rms_norm_eps,
        "rope_theta": layer.rope_theta,
        "rope_scaling": _rope_scaling(layer),
        "max_position_embeddings": layer.max_position_embeddings,
        "tie_word_embeddings": False,
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_config": {TAP_IDS: [tap - 1 for tap in config.taps], "use_aux_hidden_state": True},
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_before_logits,
        "norm_before_residual": config.norm_before_residual,
        "norm_feedback": config.norm_feedback,
    }


def _rope_scaling(layer: ModelConfig) -> dict[str, Any] | None:
    scaling = layer.rope_scaling
    if scaling is None:
        return None
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }


def _layout(file: Path, fields: dict[str, Any]) -> Layout:
    if NESTED in fields:
        if not isinstance(fields[NESTED], dict):
            raise ValueError(f"{file}: {NESTED} must be an object that describes a Llama layer")
        return "vllm"
    name = (fields.get("architectures") or ["none"])[0]
    if name not in ARCHITECTURES:
        raise ValueError(
            f"{file}: architecture {name} is no EAGLE-3 head: allowed are "
            f"{', '.join(ARCHITECTURES)}, or a {NESTED}"
        )
    return ARCHITECTURES[name]


def _refuse_unsupported(file: Path, fields: dict[str, Any]) -> None:
    inner = fields.get(NESTED, fields)
    eagle = fields.get("eagle_config") or {}
    checks: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
        ("num_hidden_layers", inner.get("num_hidden_layers"), (1, None)),
        ("norm_before_fc", fields.get("norm_before_fc"), (False, None)),
        ("use_aux_hidden_state", eagle.get("use_aux_hidden_state"), (True, None)),
        ("model_type", inner.get("model_type"), ("llama", None)),
    )
    for name, value, allowed in checks:
        if value not in allowed:
            raise ValueError(
                f"{file}: {name}={value} is not supported in an EAGLE-3 head: allowed is "
                f"{allowed[0]} or no such field"
            )


def _taps(fields: dict[str, Any]) -> tuple[int, ...]:
    """Where the ids stand says what they count: layer outputs from 0, or hidden states."""
    outputs = (fields.get("eagle_config") or {}).get(TAP_IDS)
    if outputs is not None:
        return tuple(layer + 1 for layer in _ids(outputs))
    return _ids(fields.get(TAP_IDS) or [])


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise ValueError(f"{TAP_IDS} must be a list of integers, not {value}")
    return tuple(value)


def _norm_output(fields: dict[str, Any], layout: Layout) -> dict[str, bool]:
    """One key, two meanings."""
    if layout == "vllm":
        return {"norm_feedback": _flag(fields, "norm_output", default=False)}
    return {
        "norm_before_logits": _flag(fields, "norm_output", default=True),
        "norm_feedback": _flag(fields, "norm_feedback", default=False),
    }


def _flag(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value}")
    return value


def _size(fields: dict[str, Any], name: str, *, default: int) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value}")
    return value


def _check_fit(config: Eagle3Config, verifier: ModelConfig) -> None:
    for name, found, wanted in (
        ("target_hidden_size", config.target_hidden_size, verifier.hidden_size),
        ("vocab_size", config.layer.vocab_size, verifier.vocab_size),
    ):
        if found != wanted:
            raise ValueError(
                f"{name} is {found}, but the verifier's is {wanted}: the head was made for another "
                "verifier"
            )
    if max(config.taps) > verifier.num_layers:
        raise ValueError(
            f"the head reads the hidden states {list(config.taps)}, but the verifier has "
            f"{verifier.num_layers} layers: allowed are 1 to {verifier.num_layers}"
        )
