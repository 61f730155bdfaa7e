"""How to speculate: the keys of ``--speculative-config``, frozen and checked where they are made.

Every wrong value raises ``ValueError`` with one sentence that names the key and says what is
allowed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, get_args

from engine.config_checks import check_integer, check_key, check_share, check_text, is_integer
from engine.methods import (
    METHOD_DEFAULTS,
    METHODS,
    METHODS_WITH_DRAFTER,
    NEURAL_METHODS,
    BanditAlgorithm,
    BanditReward,
    Drafter,
    DraftSampleMethod,
    Method,
)


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
    """Neural drafts: nodes kept of a tree, the pending token's included."""
    draft_min_probability: float = 0.0
    """Neural chains end before their probability falls below this; 0 never ends them."""
    draft_sample_method: DraftSampleMethod = "coupled"
    """Small drafters, when sampling: greedy, coupled to the verifier's noise, or probabilistic."""
    probe: str | None = None
    """File of the copy-intent probe; by default the one shipped for the model."""
    probe_threshold: float | None = None
    """Copy intent from which copying is allowed: by default the probe file's; 0 always copies."""
    gate: str | None = None
    """File of switch_sd_plus's gate; by default the one shipped for the model."""
    bandit_algorithm: BanditAlgorithm = "ucb1"
    """bandit_spec: how the arm is chosen, ucb1 or exp3."""
    bandit_reward: BanditReward = "tokens"
    """bandit_spec: what an arm is rewarded for, tokens of the pass or their rate in time."""
    lookahead_window: int = 7
    """lookahead: columns of the window (W)."""
    row_budget: str | int = "auto"
    """Rows verified per step: a number, 'full' (W x D) or 'auto' (from measured step times)."""

    def __post_init__(self) -> None:
        check_key("method", self.method, METHODS)
        _check_drafter(self.method, self.drafter, self.model)
        check_integer("copy_match_length", self.copy_match_length, 1, 64)
        check_integer("copy_max_candidates", self.copy_max_candidates, 1, 64)
        check_integer("copy_max_tokens", self.copy_max_tokens, 1, 256)
        check_integer("num_speculative_tokens", self.num_speculative_tokens, 1, 64)
        check_integer("draft_tree_top_k", self.draft_tree_top_k, 1, 64)
        check_integer("draft_tree_nodes", self.draft_tree_nodes, 2, 512)
        check_share("draft_min_probability", self.draft_min_probability)
        check_key("draft_sample_method", self.draft_sample_method, get_args(DraftSampleMethod))
        check_text("probe", self.probe)
        check_text("gate", self.gate)
        check_key("bandit_algorithm", self.bandit_algorithm, get_args(BanditAlgorithm))
        check_key("bandit_reward", self.bandit_reward, get_args(BanditReward))
        check_integer("lookahead_window", self.lookahead_window, 1, 64)
        if self.probe_threshold is not None:
            check_share("probe_threshold", self.probe_threshold)
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

    @property
    def reads_gate(self) -> bool:
        """Whether the method rates copies by the learned gate, with the gate's own probe."""
        return self.method == "switch_sd_plus"


def speculation(method: str, **overrides: Any) -> SpeculationConfig:
    """The configuration of a method with its own published defaults, some keys replaced.

    Raises:
        ValueError: a method, key or value that is unknown or impossible.
    """
    check_key("method", method, METHODS)
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


def _check_drafter(method: str, drafter: object, model: object) -> None:
    check_key("drafter", drafter, get_args(Drafter))
    if method in NEURAL_METHODS and drafter != method:
        raise ValueError(
            f"method {method!r} is the drafter of that name: leave the key 'drafter' out, or write "
            f"{method!r}, not {drafter!r}."
        )
    if method == "rasd" and drafter == "none":
        raise ValueError("method 'rasd' fuses copies into a neural draft: give the key 'drafter'.")
    if drafter != "none" and method not in METHODS_WITH_DRAFTER:
        raise ValueError(
            f"method {method!r} has no neural drafter: leave the key 'drafter' out, or use one of "
            f"{', '.join(METHODS_WITH_DRAFTER)}."
        )
    check_text("model", model)
    if model is not None and drafter == "none":
        raise ValueError(
            "speculative-config key 'model' names a neural drafter's weights, and drafter 'none' "
            "has none: leave the key out."
        )


def _check_row_budget(value: object) -> None:
    if value in ("auto", "full"):
        return
    if not is_integer(value) or not 1 <= value <= 16384:  # type: ignore[operator]
        raise ValueError(
            "speculative-config key 'row_budget' must be 'auto', 'full' or an integer from 1 to "
            f"16384, not {value!r}."
        )
