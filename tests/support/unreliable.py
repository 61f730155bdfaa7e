"""Drafters behind links that lose, damage, delay and rewrite frames, and that hang up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from drafters.remote import RemoteDrafter
from drafters.service import serve_drafter
from engine.interfaces import NeuralDrafter
from engine.records import Draft, SequenceView
from parallel.link import MemoryLink, memory_pair


class UnreliableDrafters:
    """Every connection is a new drafter in a thread, whose link fails at random."""

    def __init__(self, seed: int, make: Callable[[], NeuralDrafter]) -> None:
        self._random, self._make = Random(seed), make
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
        serve_drafter(there, _KilledAtRandom(self._make(), self, there))

    def close(self) -> None:
        for here, there in self._ends:
            here.close()
            there.close()
        for thread in self._threads:
            thread.join(5.0)
            assert not thread.is_alive()


@dataclass(frozen=True, slots=True)
class _KilledAtRandom:
    """Hangs up in the middle of a draft now and then."""

    inner: NeuralDrafter
    drafters: UnreliableDrafters
    end: MemoryLink

    def draft(self, view: SequenceView) -> Draft:
        if self.drafters.chance(0.1):
            self.end.close()
        return self.inner.draft(view)

    def forget(self, request_id: str) -> None:
        self.inner.forget(request_id)


@contextmanager
def unreliable(
    seed: int, make: Callable[[], NeuralDrafter], *, vocab_size: int
) -> Iterator[RemoteDrafter]:
    """The verifier's end of such a link, connected."""
    drafters = UnreliableDrafters(seed, make)
    drafter = RemoteDrafter(drafters.connect, vocab_size=vocab_size)
    try:
        assert drafter.wait_until_up(5.0)
        yield drafter
    finally:
        drafter.close()
        drafters.close()
