"""The names users choose from: methods, drafters, precisions; and the methods' own defaults."""

from __future__ import annotations

from typing import Any, Literal, get_args

from engine.copy_source import MatchRule

Method = Literal[
    "vanilla",
    "prompt_lookup",
    "copy_spec",
    "switch_sd",
    "switch_sd_plus",
    "bandit_spec",
    "eagle3",
    "small_model",
    "steered",
    "sam_decoding",
    "lookahead",
    "rasd",
    "medusa",
]
"""Every method a user may name."""

NeuralMethod = Literal["eagle3", "small_model", "steered", "medusa"]
"""Methods that are one neural drafter of the same name, always."""

NEURAL_METHODS: tuple[NeuralMethod, ...] = ("eagle3", "small_model", "steered", "medusa")

METHODS_WITH_DRAFTER = (
    "switch_sd",
    "switch_sd_plus",
    "copy_spec",
    "bandit_spec",
    "sam_decoding",
    "rasd",
    *NEURAL_METHODS,
)
"""Methods that a neural drafter can serve."""

METHODS: tuple[Method, ...] = get_args(Method)

Drafter = Literal["none", "eagle3", "small_model", "steered", "medusa"]
"""Neural drafters beside copying."""

DraftSampleMethod = Literal["greedy", "coupled", "probabilistic"]
"""How a small drafter drafts for a request that samples."""

BanditAlgorithm = Literal["ucb1", "exp3"]
BanditReward = Literal["tokens", "rate"]
"""Tokens per pass, or tokens per time."""

Precision = Literal["bfloat16", "float32", "float64"]
Exactness = Literal["strict", "fast"]
Kernels = Literal["auto", "native", "packed", "torch"]

_GATED = MatchRule()

METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    # Prompt look-up: longest n-gram 3, ten tokens (Saxena 2023, reference code); as in vLLM the
    # draft's length is num_speculative_tokens.
    "prompt_lookup": {
        "copy_match_length": 3,
        "copy_max_candidates": 1,
        "copy_max_tokens": 10,
        "num_speculative_tokens": 10,
    },
    # CopySpec: γ = 3, number_copy = 10, earliest occurrence (command-line defaults of its code).
    "copy_spec": {"copy_match_length": 3, "copy_max_candidates": 1, "copy_max_tokens": 10},
    # Our own gate rates matches of one token on, so short ones cost nothing but the look-up.
    "switch_sd_plus": {
        "copy_match_length": _GATED.match_length,
        "copy_max_candidates": _GATED.max_matches,
        "copy_max_tokens": _GATED.max_tokens,
    },
    # SAM-Decoding: matches of 5 tokens on, 40 tokens with the pending one (its code's defaults).
    "sam_decoding": {"copy_match_length": 5, "copy_max_candidates": 1, "copy_max_tokens": 39},
    # Lookahead decoding: N = 5, W = 7, G = 7 (its code's defaults for 7B); the window is never cut.
    "lookahead": {"num_speculative_tokens": 4, "copy_max_candidates": 7, "row_budget": "full"},
    # RASD fuses into a tree; its own parameters are not public.
    "rasd": {
        "drafter": "eagle3",
        "draft_tree_top_k": 10,
        "copy_match_length": 3,
        "copy_max_candidates": 3,
        "copy_max_tokens": 10,
    },
    **{method: {"drafter": method} for method in NEURAL_METHODS},
}
"""Where a method differs from ``SpeculationConfig``'s defaults, which are SwitchSD's."""
