"""Framed messages between two processes, outside every process group.

A drafter's death, stall or garbage must never hurt a request, so the verifier's side of a link
never blocks: what the peer does not read waits in a bounded buffer, and reading has a deadline. A
frame is its length, a checksum and the payload; a damaged payload is dropped and counted, a damaged
length closes the link, because nothing behind it can be found.

``memory_pair`` is the same without sockets, with faults on request, for tests.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

_HEADER = struct.Struct("<II")
_CHUNK_BYTES = 1 << 20

MAX_FRAME_BYTES = 1 << 28
"""Longest frame: features of a whole context fit, a damaged length is noticed."""

MAX_WAITING_BYTES = 1 << 29
"""Bytes that may wait for a peer that does not read before the link counts as dead."""


class LinkClosedError(Exception):
    """The other end is gone, or sent what cannot be a frame."""


class Link(Protocol):
    """One end of a link."""

    @property
    def num_damaged(self) -> int:
        """Frames dropped because their checksum was wrong."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue one frame; never waits. Raises LinkClosedError."""
        ...

    def receive(self, timeout: float | None) -> bytes | None:
        """The next frame, or None after ``timeout`` seconds (None: wait). May raise too."""
        ...

    def close(self) -> None:
        """Hang up; the other end notices."""
        ...


class SocketLink:
    """A link over a connected stream socket, which it owns."""

    def __init__(self, peer: socket.socket) -> None:
        peer.settimeout(0.0)
        self._peer = peer
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self.num_damaged = 0

    def send(self, frame: bytes) -> None:
        """Queue one frame and write what the socket takes at once."""
        self._outgoing += _HEADER.pack(len(frame), zlib.crc32(frame)) + frame
        if len(self._outgoing) > MAX_WAITING_BYTES:
            raise LinkClosedError(f"the peer has not read {len(self._outgoing)} bytes")
        self._write()

    def receive(self, timeout: float | None) -> bytes | None:
        """The next frame; meanwhile what waits is written too."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (frame := self._take()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wanting = [self._peer] if self._outgoing else []
            readable, writable, _ = select.select([self._peer], wanting, [], left)
            if writable:
                self._write()
            if readable:
                self._read()
            elif not writable:
                return None
        return frame

    def close(self) -> None:
        """Close the socket."""
        self._peer.close()

    def _write(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._peer.send(memoryview(self._outgoing)[:_CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkClosedError(str(error)) from error

    def _read(self) -> None:
        try:
            chunk = self._peer.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkClosedError(str(error)) from error
        if not chunk:
            raise LinkClosedError("the peer hung up")
        self._incoming += chunk

    def _take(self) -> bytes | None:
        """The first whole and undamaged frame that is here."""
        while len(self._incoming) >= _HEADER.size:
            length, checksum = _HEADER.unpack_from(self._incoming)
            if length > MAX_FRAME_BYTES:
                raise LinkClosedError(f"the peer announced a frame of {length} bytes")
            end = _HEADER.size + length
            if len(self._incoming) < end:
                return None
            frame = bytes(self._incoming[_HEADER.size : end])
            del self._incoming[:end]
            if zlib.crc32(frame) == checksum:
                return frame
            self.num_damaged += 1
        return None


@dataclass(slots=True)
class Faults:
    """What goes wrong on one direction of a memory link; change it while the link runs."""

    drop: Callable[[], bool] = field(default=lambda: False)
    """Asked per frame: lose it?"""
    corrupt: Callable[[], bool] = field(default=lambda: False)
    """Asked per frame: damage it? Damage that a checksum would find is dropped and counted."""
    rewrite: Callable[[bytes], bytes] = field(default=lambda frame: frame)
    """A peer that writes nonsense: the frame it sends instead."""
    delay: Callable[[], float] = field(default=lambda: 0.0)
    """Asked per frame: seconds that it travels."""


class MemoryLink:
    """One end of a pair in one process; see :func:`memory_pair`."""

    def __init__(self, incoming: _Mailbox, outgoing: _Mailbox) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    @property
    def num_damaged(self) -> int:
        """Frames that arrived damaged."""
        return self._incoming.num_damaged

    @property
    def faults(self) -> Faults:
        """Faults of the frames that this end sends."""
        return self._outgoing.faults

    def send(self, frame: bytes) -> None:
        """Hand the frame to the other end, faults permitting."""
        self._outgoing.put(frame)

    def receive(self, timeout: float | None) -> bytes | None:
        """The next frame that has arrived."""
        return self._incoming.get(timeout)

    def close(self) -> None:
        """Hang up both directions: the kill hook."""
        self._incoming.close()
        self._outgoing.close()


def memory_pair() -> tuple[MemoryLink, MemoryLink]:
    """Two ends of a link inside one process, safe to use from two threads."""
    there, back = _Mailbox(), _Mailbox()
    return MemoryLink(back, there), MemoryLink(there, back)


class _Mailbox:
    """One direction: frames with the time at which they arrive."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.num_damaged = 0
        self._frames: deque[tuple[float, bytes]] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, frame: bytes) -> None:
        with self._changed:
            if self._closed:
                raise LinkClosedError("the peer hung up")
            if self.faults.drop():
                return
            if self.faults.corrupt():
                self.num_damaged += 1
                return
            arrival = time.monotonic() + self.faults.delay()
            self._frames.append((arrival, self.faults.rewrite(frame)))
            self._changed.notify_all()

    def get(self, timeout: float | None) -> bytes | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                now = time.monotonic()
                if self._frames and self._frames[0][0] <= now:
                    return self._frames.popleft()[1]
                if self._closed:
                    raise LinkClosedError("the peer hung up")
                if deadline is not None and now >= deadline:
                    return None
                ends = [end for end in (deadline, self._next_arrival()) if end is not None]
                self._changed.wait(max(0.0, min(ends) - now) if ends else None)

    def _next_arrival(self) -> float | None:
        return self._frames[0][0] if self._frames else None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
