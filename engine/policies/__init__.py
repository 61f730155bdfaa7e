"""Switching policies: who drafts at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.bandits import EXP3, UCB1
from engine.copy_source import MatchRule
from engine.gate import Gate
from engine.interfaces import SwitchingPolicy
from engine.methods import NEURAL_METHODS
from engine.policies.bandit_spec import BanditSpec, arms, rate_of, tokens_of
from engine.policies.copy_spec import CopySpec
from engine.policies.fallback import Fallback
from engine.policies.lookahead import Lookahead
from engine.policies.neural import AlwaysNeural
from engine.policies.prompt_lookup import PromptLookup
from engine.policies.rasd import Rasd
from engine.policies.sam_decoding import SamDecoding
from engine.policies.switch_sd import SwitchSD
from engine.policies.switch_sd_plus import SwitchSDPlus
from engine.policies.vanilla import Vanilla
from engine.probe import Probe
from engine.speculation import SpeculationConfig

NO_GATE = (
    "method 'switch_sd_plus' needs a gate and none is loaded: train one with "
    "python -m launch.train gate and give it as speculative-config key 'gate'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What policies are built from."""

    keys: SpeculationConfig
    probe: Probe | None
    gate: Gate | None

    @property
    def fallback(self) -> Fallback:
        """Neural drafts where there is a drafter."""
        has_drafter = self.keys.drafter != "none"
        return Fallback(self.keys.num_speculative_tokens if has_drafter else 0)


def build_policy(
    speculation: SpeculationConfig, probe: Probe | None, gate: Gate | None = None
) -> SwitchingPolicy:
    """The policy of a configuration; a probe's gate threshold holds unless the user gave one.

    Raises:
        ValueError: a method without a policy, or whose probe or gate is not loaded.
    """
    if speculation.method not in _BUILDERS:
        raise ValueError(f"method {speculation.method!r} has no policy")
    return _BUILDERS[speculation.method](_Parts(keys=speculation, probe=probe, gate=gate))


def _vanilla(parts: _Parts) -> SwitchingPolicy:  # noqa: ARG001 - the builders' signature
    return Vanilla()


def _prompt_lookup(parts: _Parts) -> SwitchingPolicy:
    return PromptLookup(
        num_speculative_tokens=parts.keys.num_speculative_tokens,
        max_match_length=parts.keys.copy_match_length,
    )


def _copy_spec(parts: _Parts) -> SwitchingPolicy:
    return CopySpec(
        match_length=parts.keys.copy_match_length,
        max_tokens=parts.keys.copy_max_tokens,
        fallback=parts.fallback,
    )


def _switch_sd(parts: _Parts) -> SwitchingPolicy:
    return SwitchSD(
        probe_threshold=_threshold(parts.keys, parts.probe),
        match_length=parts.keys.copy_match_length,
        max_candidates=parts.keys.copy_max_candidates,
        max_tokens=parts.keys.copy_max_tokens,
        fallback=parts.fallback,
    )


def _threshold(speculation: SpeculationConfig, probe: Probe | None) -> float:
    if speculation.probe_threshold is not None:
        threshold = speculation.probe_threshold
    else:
        threshold = probe.gate_threshold(speculation.copy_match_length) if probe else 1.0
    if threshold > 0 and probe is None:
        raise ValueError(
            "method 'switch_sd' needs a probe and none is loaded: give the speculative-config key "
            "'probe', or set 'probe_threshold' to 0 to copy on every match"
        )
    return threshold


def _switch_sd_plus(parts: _Parts) -> SwitchingPolicy:
    if parts.gate is None:
        raise ValueError(NO_GATE)
    return SwitchSDPlus(
        gate=parts.gate,
        rule=MatchRule(
            match_length=parts.keys.copy_match_length,
            max_matches=parts.keys.copy_max_candidates,
            max_tokens=parts.keys.copy_max_tokens,
        ),
        num_speculative_tokens=parts.fallback.num_tokens,
    )


def _bandit_spec(parts: _Parts) -> SwitchingPolicy:
    keys = parts.keys
    return BanditSpec(
        new_bandit=UCB1 if keys.bandit_algorithm == "ucb1" else EXP3,
        arms=arms(copy_tokens=keys.copy_max_tokens, neural_tokens=parts.fallback.num_tokens),
        reward=tokens_of if keys.bandit_reward == "tokens" else rate_of,
        match_length=keys.copy_match_length,
        max_candidates=keys.copy_max_candidates,
    )


def _sam_decoding(parts: _Parts) -> SwitchingPolicy:
    return SamDecoding(
        match_length=parts.keys.copy_match_length,
        max_tokens=parts.keys.copy_max_tokens,
        fallback=parts.fallback,
    )


def _lookahead(parts: _Parts) -> SwitchingPolicy:
    return Lookahead(
        guess_tokens=parts.keys.num_speculative_tokens,
        window=parts.keys.lookahead_window,
        max_guesses=parts.keys.copy_max_candidates,
    )


def _rasd(parts: _Parts) -> SwitchingPolicy:
    return Rasd(
        num_speculative_tokens=parts.keys.num_speculative_tokens,
        max_nodes=parts.keys.draft_tree_nodes,
        match_length=parts.keys.copy_match_length,
        max_candidates=parts.keys.copy_max_candidates,
        max_tokens=parts.keys.copy_max_tokens,
    )


def _always_neural(parts: _Parts) -> SwitchingPolicy:
    return AlwaysNeural(name=parts.keys.method, fallback=parts.fallback)


_BUILDERS: Mapping[str, Callable[[_Parts], SwitchingPolicy]] = {
    "vanilla": _vanilla,
    "prompt_lookup": _prompt_lookup,
    "copy_spec": _copy_spec,
    "switch_sd": _switch_sd,
    "switch_sd_plus": _switch_sd_plus,
    "bandit_spec": _bandit_spec,
    "sam_decoding": _sam_decoding,
    "lookahead": _lookahead,
    "rasd": _rasd,
    **dict.fromkeys(NEURAL_METHODS, _always_neural),
}
