"""What the server and the coordinator say to each other over their private socket.

Plain records with a JSON form: nothing that arrives is ever unpickled. Frames are JSON behind a
four-byte length, so that one step's tokens, for all requests, are one frame.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

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


Message = Hello | Add | Cancel | DrafterFound | Stop | Accepted | Refused | Tokens

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Hello, Add, Cancel, DrafterFound, Stop, Accepted, Refused, Tokens)
}


def encode(message: Message) -> bytes:
    """One frame: length, then JSON."""
    body = json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def frame_length(prefix: bytes) -> int:
    """Bytes of the body that follow ``prefix``. Raises ValueError for an impossible length."""
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds the {MAX_FRAME_BYTES} allowed")
    return length


def decode(body: bytes) -> Message:
    """The record in a frame's body. Raises ValueError for anything else."""
    try:
        name, fields = json.loads(body)
        return _TYPES[name](**_restore(fields))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a message of this protocol: {body[:80]!r}") from error


def _restore(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither tuples nor our records."""
    if "request" in fields:
        request = fields["request"]
        return {"request": Request(**{**request, "prompt_ids": tuple(request["prompt_ids"])})}
    if "events" in fields:
        return {"events": tuple(_event(event) for event in fields["events"])}
    return fields


def _event(fields: dict[str, Any]) -> TokenEvent:
    tuples = {key: tuple(fields[key]) for key in ("token_ids", "sources")}
    return TokenEvent(**{**fields, **tuples})
