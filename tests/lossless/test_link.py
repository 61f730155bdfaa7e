"""A drafter behind a failing link: whatever is lost, late, damaged or killed, no token changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
import torch

from drafters.remote import RemoteDrafter
from drafters.service import serve_drafter
from engine.config import speculation
from engine.features import FeatureProjection
from engine.records import Draft, SequenceView
from parallel.link import MemoryLink, memory_pair
from parallel.mesh import Mesh
from tests.lossless.test_greedy import CONFIG, MAX_TOKENS, probe, repetitive_prompts
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.reference import greedy_decode
from tests.support.toy_drafter import ToyDrafter


@pytest.fixture(scope="module")
def truth() -> list[tuple[int, ...]]:
    """Plain decoding by recomputation."""
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [greedy_decode(model, prompt, MAX_TOKENS) for prompt in repetitive_prompts(4)]


class UnreliableDrafters:
    """Every connection is a new drafter thread whose link fails at random."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._ends: list[tuple[MemoryLink, MemoryLink]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def chance(self, share: float) -> bool:
        with self._lock:
            return self._random.random() < share

    def connect(self) -> MemoryLink:
        here, there = memory_pair()
        for end in (here, there):
            end.faults.drop = lambda: self.chance(0.05)
            end.faults.corrupt = lambda: self.chance(0.05)
            end.faults.delay = lambda: 0.004 * self.chance(0.2)
        there.faults.rewrite = lambda frame: frame[::-1] if self.chance(0.05) else frame
        thread = threading.Thread(target=self._serve, args=(there,))
        thread.start()
        self._ends.append((here, there))
        self._threads.append(thread)
        return here

    def _serve(self, there: MemoryLink) -> None:
        serve_drafter(there, KilledAtRandom(self, there, vocab_size=CONFIG.vocab_size))

    def close(self) -> None:
        for here, there in self._ends:
            here.close()
            there.close()
        for thread in self._threads:
            thread.join(5.0)
            assert not thread.is_alive()


class KilledAtRandom(ToyDrafter):
    """Hangs up in the middle of a draft now and then."""

    def __init__(self, drafters: UnreliableDrafters, end: MemoryLink, *, vocab_size: int) -> None:
        super().__init__(vocab_size=vocab_size)
        self._drafters, self._end = drafters, end

    def draft(self, view: SequenceView) -> Draft:
        if self._drafters.chance(0.1):
            self._end.close()
        return super().draft(view)


@contextmanager
def unreliable(seed: int) -> Iterator[RemoteDrafter]:
    drafters = UnreliableDrafters(seed)
    drafter = RemoteDrafter(drafters.connect, vocab_size=CONFIG.vocab_size)
    try:
        yield drafter
    finally:
        drafter.close()
        drafters.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["eagle3", "switch_sd", "copy_spec"])
def test_faults_cost_drafts_never_tokens(
    truth: list[tuple[int, ...]], method: str, seed: int
) -> None:
    hidden = CONFIG.hidden_size
    projection = FeatureProjection(
        taps=(1, 2), weights=tuple(torch.eye(3, hidden, dtype=torch.float64) for _ in range(2))
    )
    with unreliable(seed) as drafter:
        assert drafter.wait_until_up(5.0)
        tiny = TinyEngine(
            config=CONFIG,
            speculation=speculation(method, drafter="eagle3"),
            probe=probe(),
            drafter=drafter,
            projection=projection,
        )
        engine = build_engine(tiny, Mesh.single())
        for batch in (1, 4, 4):
            prompts = repetitive_prompts(4)[:batch]
            assert answers(engine, prompts, max_tokens=MAX_TOKENS) == truth[:batch]
        counters = drafter.counters
        assert counters.asked + counters.unavailable > 0
        assert counters.answered + counters.missed <= counters.asked
