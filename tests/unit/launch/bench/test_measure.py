"""Interleaving, with systems that only note when they are asked."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from launch.bench.cpu_time import cpu_seconds
from launch.bench.measure import WARM_UP_TOKENS, measure, rotated
from launch.bench.runs import Run
from launch.bench.workloads import Prompt
from tests.unit.launch.bench.runs import plain_run


@dataclass
class Noting:
    """Notes its calls in a list shared with the others."""

    label: str
    calls: list[tuple[str, int, int]]
    processes: tuple[int, ...] = field(default_factory=lambda: (os.getpid(),))

    def answer(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Run:
        self.calls.append((self.label, prompt_ids[0], max_tokens))
        return plain_run((1, 2), seconds=1.0)


PROMPTS = [Prompt(name=str(number), token_ids=(number,)) for number in range(3)]


def test_every_system_answers_a_prompt_before_the_next_in_rotating_order() -> None:
    calls: list[tuple[str, int, int]] = []
    systems = [Noting(label, calls) for label in "abc"]
    noted: list[tuple[str, str]] = []
    measure(
        systems, PROMPTS, max_tokens=32, on_run=lambda label, p, _: noted.append((label, p.name))
    )
    warm_up, timed = calls[:3], calls[3:]
    assert [(label, tokens) for label, _, tokens in warm_up] == [
        (label, WARM_UP_TOKENS) for label in "abc"
    ]
    assert [prompt for _, prompt, _ in timed] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert "".join(label for label, _, _ in timed) == "abc" + "bca" + "cab"
    assert noted == [(label, str(prompt)) for label, prompt, _ in timed]


def test_nothing_to_measure_asks_nobody() -> None:
    calls: list[tuple[str, int, int]] = []
    measure([Noting("a", calls)], [], max_tokens=4, on_run=lambda *_: None)
    assert calls == []


def test_everyone_is_first_equally_often() -> None:
    systems = [Noting(label, []) for label in "abcd"]
    assert [rotated(systems, turn)[0].label for turn in range(8)] == list("abcdabcd")


def test_processor_time_grows_with_work_and_unknown_processes_count_nothing() -> None:
    before = cpu_seconds([os.getpid()])
    # 10 ms ticks subtract inexactly (98.53 - 98.48 < 0.05), so the sums are compared instead.
    wanted, used = before + 0.05, time.process_time() + 5.0
    while cpu_seconds([os.getpid()]) < wanted and time.process_time() < used:
        sum(range(1000))
    assert cpu_seconds([os.getpid()]) >= wanted
    assert cpu_seconds([1 << 30]) == 0.0
