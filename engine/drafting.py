"""A method ready to draft: its policy, the neural drafter behind it, and what that one reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.gate import Gate
from engine.interfaces import BatchDrafter, NeuralDrafter, SwitchingPolicy
from engine.policies import build_policy
from engine.probe import Probe
from engine.records import Draft, SequenceView
from engine.speculation import DrafterKey, SpeculationConfig


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Implements ``BatchDrafter`` with a drafter that knows one sequence at a time."""

    inner: NeuralDrafter

    def draft_batch(self, views: Sequence[SequenceView]) -> list[Draft]:
        """One draft after the other."""
        return [replace(self.inner.draft(view), source="neural") for view in views]

    def link_counts(self) -> Mapping[str, int]:
        """There is no link."""
        return {}

    def forget(self, request_id: str) -> None:
        """Told to the drafter."""
        self.inner.forget(request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrafter:
    """A neural drafter and which of the runner's projections feeds it (from 1; 0: none)."""

    drafter: BatchDrafter
    projection: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What the scheduler needs to draft by one method."""

    speculation: SpeculationConfig
    policy: SwitchingPolicy
    drafter: BatchDrafter | None = None
    projection: int = 0
    """Which features the verifier pass must read."""
    probe: int = 0
    """Which of the runner's probes this method listens to."""

    def forget(self, request_id: str) -> None:
        """Tell the drafter, if there is one, that a request has ended."""
        if self.drafter is not None:
            self.drafter.forget(request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafters:
    """Everything loaded that can draft: the probe, the gate and the neural drafters."""

    probe: Probe | None = None
    gate: Gate | None = None
    neural: Mapping[DrafterKey, LoadedDrafter] = field(default_factory=dict)

    def drafting(self, speculation: SpeculationConfig) -> Drafting:
        """Raises ``ValueError`` when the probe or the drafter that it needs was not loaded."""
        loaded = self.neural.get(speculation.drafter_key)
        if loaded is None and speculation.drafter != "none":
            raise ValueError(
                f"drafter {speculation.drafter!r} was not loaded when the engine was assembled"
            )
        return Drafting(
            speculation=speculation,
            policy=build_policy(speculation, self.probe, self.gate),
            drafter=None if loaded is None else loaded.drafter,
            projection=0 if loaded is None else loaded.projection,
            probe=self._gate_index if speculation.reads_gate else 0,
        )

    @property
    def probes(self) -> tuple[Probe, ...]:
        """What the verifier's passes must read: the copy-intent probe, then the gate's."""
        own = () if self.gate is None else (self.gate.probe,)
        return own if self.probe is None else (self.probe, *own)

    @property
    def _gate_index(self) -> int:
        return len(self.probes) - 1
