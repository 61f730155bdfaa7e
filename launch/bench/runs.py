"""One answer of one system to one prompt, as measured, and its line in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.records import NearTie, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An answer with its times; prefill (up to the first token) and decoding apart."""

    token_ids: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    prefill_cpu_seconds: float
    decode_cpu_seconds: float
    """Processor seconds of this system during decoding, all its ranks and threads."""
    num_passes: int
    """Verifier passes while decoding."""
    records: tuple[StepRecord, ...] = ()
    """Step records; a peer gives none."""
    idle_cpu_seconds: float = 0.0
    """Processor seconds that the systems which should have slept used meanwhile."""

    @property
    def num_decoded(self) -> int:
        """Output tokens of the decode steps: all but the first, which prefill gives."""
        return max(len(self.token_ids) - 1, 0)

    @property
    def wall_seconds(self) -> float:
        """The whole answer."""
        return self.prefill_seconds + self.decode_seconds

    @property
    def near_ties(self) -> dict[int, float]:
        """Margin by absolute position of every near-tie."""
        return {tie.position: tie.margin for step in self.records for tie in step.near_ties}


def run_to_json(run: Run) -> dict[str, Any]:
    """A JSON object with everything."""
    return asdict(run)


def run_from_json(fields: Mapping[str, Any]) -> Run:
    """The inverse of ``run_to_json``."""
    values = dict(fields)
    values["token_ids"] = tuple(values["token_ids"])
    values["records"] = tuple(_record(item) for item in values["records"])
    return Run(**values)


def _record(fields: Mapping[str, Any]) -> StepRecord:
    values = dict(fields)
    values["near_ties"] = tuple(NearTie(**tie) for tie in values["near_ties"])
    return StepRecord(**values)
