"""A drafter process that answers at once, and a link to it that counts bytes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from drafters.service import serve_drafter
from engine.records import Draft, SequenceView
from parallel.link import Link
from ray_app.drafter_link import DrafterListener
from ray_app.messages import DrafterFound

START_SECONDS = 60.0
"""How long the process may take to start or to end."""

_TOKEN = "messages"


class CountedLink:
    """Implements ``Link`` and counts the bytes of the frames in both directions."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.num_bytes = 0

    @property
    def num_damaged(self) -> int:
        """As the link counts."""
        return self._link.num_damaged

    def send(self, frame: bytes) -> None:
        """Counted and sent."""
        self.num_bytes += len(frame)
        self._link.send(frame)

    def receive(self, timeout: float | None) -> bytes | None:
        """Received and counted."""
        frame = self._link.receive(timeout)
        self.num_bytes += 0 if frame is None else len(frame)
        return frame

    def close(self) -> None:
        """Hang up."""
        self._link.close()


class _InstantDrafter:
    """Implements ``NeuralDrafter`` without thinking."""

    def draft(self, view: SequenceView) -> Draft:
        return Draft(source="neural", candidates=(tuple(range(view.max_draft_tokens)),))

    def forget(self, request_id: str) -> None:
        del request_id


@contextmanager
def drafter_process() -> Iterator[DrafterFound]:
    """A drafter that answers at once, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_drafter, args=(theirs,), daemon=True)
    process.start()
    yield ours.recv()
    process.join(START_SECONDS)
    process.kill()


def _run_drafter(found: Connection) -> None:
    torch.set_num_threads(1)
    listener = DrafterListener("127.0.0.1", _TOKEN)
    found.send(listener.address)
    serve_drafter(listener.accept(), _InstantDrafter())
