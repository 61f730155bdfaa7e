"""From measured answers to one line of ``cells.jsonl``: pure arithmetic.

Every rate is taken from ``engine.metrics``. ``output_tokens`` and ``verifier_passes`` count decode
steps, so that their ratio is the block efficiency and vanilla's is 1; ``answer_tokens`` also counts
each answer's first token, which prefill gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine import metrics
from engine.metrics import Timing
from launch.bench.modelled import modelled_speedup
from launch.bench.runs import Run

Agreement = Literal["equal", "near_tie", "mismatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all rows of a table share; two runs with equal settings may share a table."""

    workload: str
    recipe: str
    model: str
    dtype: str
    exactness: str
    kernels: str
    threads: int
    tp: int
    pp: int
    prompts: int
    max_tokens: int
    temperature: float = 0.0
    """Above 0 all methods sample with the same seed, so their answers are compared as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row's identity: its label, who runs it, and what it is relative to."""

    label: str
    method: str
    system: str
    """switchsteer, transformers or vllm."""
    base: str
    """Label of the same system's plain decoding."""
    speculation: Mapping[str, Any] | None = None

    @property
    def identity(self) -> str:
        """Equal for rows that measure the same."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One prompt's run and the same system's plain run."""

    prompt: str
    prompt_length: int
    run: Run
    base: Run


def make_cell(
    settings: Settings, row: Row, answers: Sequence[Answer], *, command: str, versions: Any
) -> dict[str, Any]:
    """One line of ``cells.jsonl``."""
    runs = [answer.run for answer in answers]
    agreement = [compare(answer) for answer in answers]
    knows_margins = row.system == "switchsteer"
    return {
        "method": row.method,
        **asdict(settings),
        "label": row.label,
        "system": row.system,
        "speculation": row.speculation,
        **_counts(runs),
        **_step_metrics(runs),
        **_speeds(answers),
        "modelled_speedup": modelled_speedup([(a.run, a.base, a.prompt_length) for a in answers]),
        "equal_to_vanilla": agreement.count("equal"),
        "near_ties": agreement.count("near_tie") if knows_margins else None,
        "mismatches": len(answers) - agreement.count("equal") - agreement.count("near_tie"),
        **_seconds(runs),
        "cores_used": _cores(runs),
        "cores_used_by_others": _others(runs),
        "command": command,
        "versions": versions,
    }


def compare(answer: Answer) -> Agreement:
    """Token by token with plain decoding.

    A first difference counts as a near-tie if plain decoding itself recorded that its two largest
    logits were within the tolerance there.
    """
    ours, plain = answer.run.token_ids, answer.base.token_ids
    if ours == plain:
        return "equal"
    pairs = enumerate(zip(ours, plain, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(plain)))
    position = answer.prompt_length + first
    return "near_tie" if position in answer.base.near_ties else "mismatch"


def _counts(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "output_tokens": sum(run.num_decoded for run in runs),
        "answer_tokens": sum(len(run.token_ids) for run in runs),
        "verifier_passes": sum(run.num_passes for run in runs),
    }


def _step_metrics(runs: Sequence[Run]) -> dict[str, Any]:
    """What only step records tell; a peer without them still has its tokens per pass."""
    records = [record for run in runs for record in run.records]
    counts = _counts(runs)
    passes = counts["verifier_passes"]
    return {
        "block_efficiency": counts["output_tokens"] / passes if passes else None,
        "accepted_length": {
            source: metrics.accepted_length(records, source) for source in metrics.DRAFT_SOURCES
        },
        "share": dict(metrics.shares(records)),
        "false_copy_rate": metrics.false_copy_rate(records),
        "drafter_calls": dict(metrics.drafter_calls(records)),
    }


def _speeds(answers: Sequence[Answer]) -> dict[str, Any]:
    decode, base = _timings(answers, "run"), _timings(answers, "base")
    whole = [_whole(answer.run) for answer in answers]
    return {
        "tokens_per_second": asdict(metrics.tokens_per_second(decode)),
        "speedup": asdict(metrics.speedup(decode, base)),
        "answer_tokens_per_second": asdict(metrics.tokens_per_second(whole)),
        "answer_speedup": asdict(metrics.speedup(whole, [_whole(a.base) for a in answers])),
    }


def _timings(answers: Sequence[Answer], which: Literal["run", "base"]) -> list[Timing]:
    runs = [answer.run if which == "run" else answer.base for answer in answers]
    return [Timing(num_tokens=run.num_decoded, seconds=run.decode_seconds) for run in runs]


def _whole(run: Run) -> Timing:
    return Timing(num_tokens=len(run.token_ids), seconds=run.wall_seconds)


def _seconds(runs: Sequence[Run]) -> dict[str, float]:
    decode = [record for run in runs for record in metrics.decode_steps(run.records)]
    return {
        "prefill_seconds": sum(run.prefill_seconds for run in runs),
        "decode_seconds": sum(run.decode_seconds for run in runs),
        "draft_seconds": sum(record.draft_ms for record in decode) / 1e3,
        "verify_seconds": sum(record.verify_ms for record in decode) / 1e3,
    }


def _cores(runs: Sequence[Run]) -> float | None:
    """Processor time / wall time over the decode intervals."""
    wall = sum(run.decode_seconds for run in runs)
    return sum(run.decode_cpu_seconds for run in runs) / wall if wall else None


def _others(runs: Sequence[Run]) -> float | None:
    """What the systems that should have slept took from this one, in cores."""
    wall = sum(run.wall_seconds for run in runs)
    return sum(run.idle_cpu_seconds for run in runs) / wall if wall else None
