"""What an engine is built from: frozen configurations, checked where they are made.

Every wrong value raises ``ValueError`` with one sentence that names the field as the user writes it
and says what is allowed, so that a command can show the sentence as it is. Field texts become the
help of the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, get_args

from engine.methods import (
    AVAILABLE_DRAFTERS,
    AVAILABLE_METHODS,
    METHOD_DEFAULTS,
    METHODS_WITH_DRAFTER,
    NEURAL_METHODS,
    Drafter,
    DraftSampleMethod,
    Exactness,
    Kernels,
    Method,
    Precision,
)

MAX_MODEL_LEN = 1 << 20
"""Largest accepted ``max_model_len``: beyond it a wrong digit is likelier than a wish."""


class DrafterKey(NamedTuple):
    """What a neural drafter is made from."""

    drafter: Drafter
    model: str | None
    tree_top_k: int
    tree_nodes: int
    tree_depth: int
    """0 for a chain, whose length is asked for at every step."""
    min_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How draft tokens are found: the keys of ``--speculative-config``.

    The defaults are SwitchSD's; ``speculation`` gives every other method its own.
    """

    method: Method = "switch_sd"
    """Who drafts: a method's name."""
    drafter: Drafter = "none"
    """The neural drafter beside copying."""
    model: str | None = None
    """Weights of the neural drafter: a hub id or a directory."""
    copy_match_length: int = 5
    """κ: the newest tokens that must have occurred before; prompt look-up's longest match."""
    copy_max_candidates: int = 10
    """W: earlier occurrences whose continuations are verified together."""
    copy_max_tokens: int = 20
    """D: tokens copied per candidate."""
    num_speculative_tokens: int = 5
    """Draft tokens per neural draft or prompt look-up; the depth of a draft tree."""
    draft_tree_top_k: int = 1
    """Neural drafts: nodes expanded per level of a dynamic tree; 1 drafts a chain."""
    draft_tree_nodes: int = 24
    """Neural drafts: nodes kept of a dynamic tree, the pending token's included."""
    draft_min_probability: float = 0.0
    """Neural chains end before their probability falls below this; 0 never ends them."""
    draft_sample_method: DraftSampleMethod = "coupled"
    """Small drafters, when sampling: greedy, coupled to the verifier's noise, or probabilistic."""
    probe: str | None = None
    """File of the copy-intent probe; by default the one shipped for the model."""
    probe_threshold: float | None = None
    """Copy intent from which copying is allowed: by default the probe file's; 0 always copies."""
    row_budget: str | int = "auto"
    """Rows verified per step: a number, 'full' (W x D) or 'auto' (from measured step times)."""

    def __post_init__(self) -> None:
        _check_method(self.method)
        _check_drafter(self.method, self.drafter, self.model)
        _check_integer("copy_match_length", self.copy_match_length, 1, 64)
        _check_integer("copy_max_candidates", self.copy_max_candidates, 1, 64)
        _check_integer("copy_max_tokens", self.copy_max_tokens, 1, 256)
        _check_integer("num_speculative_tokens", self.num_speculative_tokens, 1, 64)
        _check_integer("draft_tree_top_k", self.draft_tree_top_k, 1, 64)
        _check_integer("draft_tree_nodes", self.draft_tree_nodes, 2, 512)
        _check_share("draft_min_probability", self.draft_min_probability)
        _check_choice(
            "speculative-config key 'draft_sample_method'",
            self.draft_sample_method,
            get_args(DraftSampleMethod),
        )
        _check_text("probe", self.probe)
        if self.probe_threshold is not None:
            _check_share("probe_threshold", self.probe_threshold)
        _check_row_budget(self.row_budget)

    @property
    def drafter_key(self) -> DrafterKey:
        """Which neural drafter is meant: configurations with the same key share one."""
        return DrafterKey(
            self.drafter,
            self.model,
            self.draft_tree_top_k,
            self.draft_tree_nodes,
            self.num_speculative_tokens if self.draft_tree_top_k > 1 else 0,
            self.draft_min_probability,
        )

    @property
    def reads_probe(self) -> bool:
        """Whether the method asks the verifier's probe before it copies."""
        return self.method == "switch_sd" and self.probe_threshold != 0


def speculation(method: str, **overrides: Any) -> SpeculationConfig:
    """The configuration of a method with its own published defaults, some keys replaced.

    Raises:
        ValueError: a method, key or value that is unknown or impossible.
    """
    _check_method(method)
    known = [item.name for item in fields(SpeculationConfig)]
    for key in overrides:
        if key not in known:
            raise ValueError(
                f"speculative-config has no key {key!r}; its keys are {', '.join(known)}."
            )
    values: dict[str, Any] = {**METHOD_DEFAULTS.get(method, {}), **overrides, "method": method}
    return SpeculationConfig(**values)


def parse_speculation(text: str, *, base: SpeculationConfig | None = None) -> SpeculationConfig:
    """``--speculative-config``: a JSON object.

    The keys left out take the named method's defaults or, where no method is named, ``base``'s.

    Raises:
        ValueError: text that is not a JSON object, and everything ``speculation`` refuses.
    """
    keys = parse_overrides(text)
    if "method" not in keys:
        known = base or SpeculationConfig()
        keys = {item.name: getattr(known, item.name) for item in fields(known)} | keys
    return speculation(keys.pop("method"), **keys)


def parse_overrides(text: str) -> dict[str, Any]:
    """The keys and values of a JSON object, not yet checked."""
    try:
        keys = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"speculative-config must be a JSON object, and {text!r} is not JSON: {error.msg} at "
            f"character {error.pos}."
        ) from None
    if not isinstance(keys, dict):
        raise ValueError(f"speculative-config must be a JSON object, not {text!r}.")
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: the verifier, how it is spread over ranks, and how it speculates."""

    model: str
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: Precision = "bfloat16"
    """Precision of weights and activations."""
    tensor_parallel_size: int = 1
    """Ranks that share every layer."""
    pipeline_parallel_size: int = 1
    """Stages that share the layers among them."""
    max_model_len: int = 4096
    """Longest sequence, prompt and answer together."""
    max_num_seqs: int = 4
    """Requests decoded together."""
    max_kv_tokens: int | None = None
    """Tokens of all running requests together; beyond it the newest are computed again later."""
    enable_prefix_caching: bool = True
    """Whether a prompt reuses what an earlier one with the same beginning left in the cache."""
    quantization: str | None = None
    """Weight quantisation; none is available yet."""
    exactness: Exactness = "strict"
    """strict: bit for bit plain decoding's tokens; fast: no row padding, near-ties are counted."""
    num_threads: int | None = None
    """Threads of one rank; by default the machine's cores divided among its ranks."""
    kernels: Kernels = "auto"
    """CPU kernels: our own compiled ones, pre-packed linear layers, or plain torch."""
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    """How draft tokens are found."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError(f"--model must name a hub id or a directory, not {self.model!r}.")
        _check_choice("--dtype", self.dtype, get_args(Precision))
        _check_flag_integer("--tensor-parallel-size", self.tensor_parallel_size, 1, 1024)
        _check_flag_integer("--pipeline-parallel-size", self.pipeline_parallel_size, 1, 1024)
        _check_flag_integer("--max-model-len", self.max_model_len, 2, MAX_MODEL_LEN)
        _check_flag_integer("--max-num-seqs", self.max_num_seqs, 1, 1024)
        if self.max_kv_tokens is not None:
            _check_flag_integer("--max-kv-tokens", self.max_kv_tokens, self.max_model_len, 2**40)
        if self.quantization is not None:
            raise ValueError(
                f"--quantization {self.quantization!r} is not available yet: leave the flag out."
            )
        _check_choice("--exactness", self.exactness, get_args(Exactness))
        if self.num_threads is not None:
            _check_flag_integer("--num-threads", self.num_threads, 1, 1024)
        _check_choice("--kernels", self.kernels, get_args(Kernels))

    @property
    def num_ranks(self) -> int:
        """Verifier ranks: tensor-parallel times pipeline-parallel."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def threads_per_rank(self, num_cores: int) -> int:
        """Threads of each rank on a machine of ``num_cores`` that holds every rank."""
        if self.num_threads is not None:
            return self.num_threads
        return max(1, num_cores // self.num_ranks)


def _check_method(method: object) -> None:
    _check_choice("speculative-config key 'method'", method, get_args(Method))
    if method not in AVAILABLE_METHODS:
        raise ValueError(
            f"method {method!r} is not available yet; available are {', '.join(AVAILABLE_METHODS)}."
        )


def _check_drafter(method: str, drafter: object, model: object) -> None:
    _check_choice("speculative-config key 'drafter'", drafter, get_args(Drafter))
    if drafter not in AVAILABLE_DRAFTERS:
        raise ValueError(
            f"drafter {drafter!r} is not available yet; available is "
            f"{', '.join(AVAILABLE_DRAFTERS)}."
        )
    if method in NEURAL_METHODS and drafter != method:
        raise ValueError(
            f"method {method!r} is the drafter of that name: leave the key 'drafter' out, or write "
            f"{method!r}, not {drafter!r}."
        )
    if drafter != "none" and method not in METHODS_WITH_DRAFTER:
        raise ValueError(
            f"method {method!r} has no neural drafter: leave the key 'drafter' out, or use one of "
            f"{', '.join(METHODS_WITH_DRAFTER)}."
        )
    _check_text("model", model)
    if model is not None and drafter == "none":
        raise ValueError(
            "speculative-config key 'model' names a neural drafter's weights, and drafter 'none' "
            "has none: leave the key out."
        )


def _check_share(key: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:  # type: ignore[operator]
        raise ValueError(
            f"speculative-config key {key!r} must be a number from 0 to 1, not {value!r}."
        )


def _check_row_budget(value: object) -> None:
    if value in ("auto", "full"):
        return
    if not _is_integer(value) or not 1 <= value <= 16384:  # type: ignore[operator]
        raise ValueError(
            "speculative-config key 'row_budget' must be 'auto', 'full' or an integer from 1 to "
            f"16384, not {value!r}."
        )


def _check_integer(key: str, value: object, low: int, high: int) -> None:
    _check_flag_integer(f"speculative-config key {key!r}", value, low, high)


def _check_flag_integer(name: str, value: object, low: int, high: int) -> None:
    if not _is_integer(value) or not low <= value <= high:  # type: ignore[operator]
        raise ValueError(f"{name} must be an integer from {low} to {high}, not {value!r}.")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_text(key: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"speculative-config key {key!r} must be a text, not {value!r}.")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
