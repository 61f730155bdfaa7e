"""What the server and the coordinator say to each other over their private socket.

Plain records with a JSON form: nothing that arrives is ever unpickled. One step's tokens,
for all requests, are one frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from engine.counters import EngineCounters
from engine.records import Request, TokenEvent

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
"""Far above any prompt; a larger announcement is garbage."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection: proves that the server sent it."""

    token: str


@dataclass(frozen=True, slots=True)
class Add:
    """A new request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget a request; its client has gone."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Began:
    """The server saw the first token: what came before it was no traffic."""


@dataclass(frozen=True, slots=True)
class DrafterFound:
    """A drafter, the first or the next, listens here and wants to hear this token."""

    host: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop on every rank."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine took the request; tokens follow."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine cannot serve the request: the engine's own sentence."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Everything one step produced."""

    events: tuple[TokenEvent, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """The engine's counters; also a sign of life while it works."""

    counters: EngineCounters


Message = Hello | Add | Cancel | Began | DrafterFound | Stop | Accepted | Refused | Tokens | Stats

_FORMS: dict[str, TypeAdapter[Message]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (Hello, Add, Cancel, Began, DrafterFound, Stop, Accepted, Refused, Tokens, Stats)
}


def encode(message: Message) -> bytes:
    """One frame: length, the record's name, a line feed, its fields as JSON."""
    name = type(message).__name__
    body = name.encode() + b"\n" + _FORMS[name].dump_json(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def frame_length(prefix: bytes) -> int:
    """Bytes of the body that follow ``prefix``. Raises ValueError for an impossible length."""
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds the {MAX_FRAME_BYTES} allowed")
    return length


def decode(body: bytes) -> Message:
    """The record in a frame's body. Raises ValueError for anything else."""
    name, _, fields = body.partition(b"\n")
    try:
        return _FORMS[name.decode()].validate_json(fields)
    except (KeyError, UnicodeDecodeError, ValidationError) as error:
        raise ValueError(f"not a message of this protocol: {body[:80]!r}") from error
