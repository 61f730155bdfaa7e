"""Interleaved measurement: every system answers a prompt before any system sees the next one.

The order rotates from prompt to prompt, so that a machine that slows down, or a cache that is warm,
favours nobody. Systems that wait are checked to be asleep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.engine import SpeculativeEngine
from engine.sampling import GREEDY, SamplingParams
from engine.speculation import SpeculationConfig
from launch.bench.cpu_time import cpu_seconds
from launch.bench.runs import Run
from launch.bench.workloads import Prompt

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.3
"""Pause between systems of different processes: waiting OpenMP threads spin this long at most."""

WARM_UP_TOKENS = 16


class Contestant(Protocol):
    """Something that answers prompts: one of our methods, or a peer's."""

    @property
    def label(self) -> str:
        """The row's label."""
        ...

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids whose processor time belongs to it."""
        ...

    def answer(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Run:
        """Answer one prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContestant:
    """One method on our engine; all methods share one engine and its weights."""

    label: str
    engine: SpeculativeEngine
    speculation: SpeculationConfig
    processes: tuple[int, ...]
    """This process first, then the other ranks on this machine."""
    sampling: SamplingParams = GREEDY
    """The same for all methods: equal seeds give equal answers."""

    def answer(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Run:
        """Switch the policy and generate."""
        self.engine.use_policy(self.speculation)
        others_before = cpu_seconds(self.processes[1:])
        result = self.engine.generate(prompt_ids, max_tokens=max_tokens, sampling=self.sampling)
        others = cpu_seconds(self.processes[1:]) - others_before
        wall = result.prefill_seconds + result.decode_seconds
        decode_share = result.decode_seconds / wall if wall else 0.0
        return Run(
            token_ids=result.token_ids,
            prefill_seconds=result.prefill_seconds,
            decode_seconds=result.decode_seconds,
            prefill_cpu_seconds=result.prefill_cpu_seconds + others * (1 - decode_share),
            decode_cpu_seconds=result.decode_cpu_seconds + others * decode_share,
            num_passes=sum(record.source != "prefill" for record in result.records),
            records=result.records,
        )


def measure(
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    on_run: Callable[[str, Prompt, Run], None],
) -> None:
    """Warm every contestant up on the first prompt, then measure all prompts."""
    if not prompts:
        return
    for contestant in contestants:
        contestant.answer(prompts[0].token_ids, min(max_tokens, WARM_UP_TOKENS))
    for index, prompt in enumerate(prompts):
        for contestant in rotated(contestants, index):
            _settle(contestants)
            on_run(contestant.label, prompt, _timed(contestant, contestants, prompt, max_tokens))


def rotated(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """The contestants in the order of this turn: each is first equally often."""
    start = turn % len(contestants)
    return [*contestants[start:], *contestants[:start]]


def _settle(contestants: Sequence[Contestant]) -> None:
    """With one process there is nobody whose threads could still spin."""
    if len({contestant.processes for contestant in contestants}) > 1:
        time.sleep(SETTLE_SECONDS)


def _timed(
    contestant: Contestant, contestants: Sequence[Contestant], prompt: Prompt, max_tokens: int
) -> Run:
    """One answer, and what everybody else's processes used of the processor meanwhile."""
    everybody = {pid for each in contestants for pid in each.processes}
    others = tuple(everybody - set(contestant.processes))
    before = cpu_seconds(others)
    run = contestant.answer(prompt.token_ids, max_tokens)
    return replace(run, idle_cpu_seconds=cpu_seconds(others) - before)
