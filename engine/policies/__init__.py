"""Switching policies: who drafts at each step."""

from __future__ import annotations

from engine.gate import Gate
from engine.interfaces import SwitchingPolicy
from engine.policies.copy_spec import CopySpec
from engine.policies.fallback import Fallback
from engine.policies.neural import AlwaysNeural
from engine.policies.prompt_lookup import PromptLookup
from engine.policies.switch_sd import SwitchSD
from engine.policies.switch_sd_plus import SwitchSDPlus
from engine.policies.vanilla import Vanilla
from engine.probe import Probe
from engine.speculation import SpeculationConfig

NO_GATE = (
    "method 'switch_sd_plus' needs a gate and none is loaded: train one with "
    "python -m launch.train gate and give it as speculative-config key 'gate'"
)


def build_policy(
    speculation: SpeculationConfig, probe: Probe | None, gate: Gate | None = None
) -> SwitchingPolicy:
    """The policy of a configuration; a probe's gate threshold holds unless the user gave one."""
    has_drafter = speculation.drafter != "none"
    fallback = Fallback(speculation.num_speculative_tokens if has_drafter else 0)
    match speculation.method:
        case "vanilla":
            return Vanilla()
        case "prompt_lookup":
            return PromptLookup(
                num_speculative_tokens=speculation.num_speculative_tokens,
                max_match_length=speculation.copy_match_length,
            )
        case "copy_spec":
            return CopySpec(
                match_length=speculation.copy_match_length,
                max_tokens=speculation.copy_max_tokens,
                fallback=fallback,
            )
        case "switch_sd":
            return SwitchSD(
                probe_threshold=_threshold(speculation, probe),
                match_length=speculation.copy_match_length,
                max_candidates=speculation.copy_max_candidates,
                max_tokens=speculation.copy_max_tokens,
                fallback=fallback,
            )
        case "switch_sd_plus":
            if gate is None:
                raise ValueError(NO_GATE)
            return SwitchSDPlus(
                gate=gate,
                match_length=speculation.copy_match_length,
                max_candidates=speculation.copy_max_candidates,
                max_tokens=speculation.copy_max_tokens,
                num_speculative_tokens=fallback.num_tokens,
            )
        case "eagle3" | "small_model" | "steered":
            return AlwaysNeural(name=speculation.method, fallback=fallback)
    raise ValueError(f"method {speculation.method!r} has no policy")


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
