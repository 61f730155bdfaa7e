"""What crosses the drafter link: context and a question one way, draft tokens the other.

Every message carries (epoch, request, step, base length); whoever receives one drops it unless all
four are what it waits for. Bytes from the other process are never trusted: whatever cannot be read
raises ``ValueError`` and is counted by the receiver.

Layout: int64 words (kind, the four tags, then sizes and tokens), then features as raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_QUESTION, _REPLY, _FORGET = 1, 2, 3
_TAG_WORDS = 5
_QUESTION_WORDS = _TAG_WORDS + 6
_DTYPES = (torch.float32, torch.bfloat16, torch.float64)
_MAX_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """Which state of which request a message speaks of."""

    epoch: int
    """Raised whenever the drafter is replaced."""
    request: int
    step: int
    base_length: int
    """Tokens known when the question was asked, the pending one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """New context of one request, and the wish for a draft behind it."""

    tag: Tag
    start: int
    """Position of the first token in ``token_ids``; what comes before was sent earlier."""
    token_ids: tuple[int, ...]
    """Up to and with the pending token."""
    max_draft_tokens: int
    features: Tensor | None = None
    """[n, F]: verifier features of the last n positions before the pending token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Candidate continuations of the pending token, best first."""

    tag: Tag
    candidates: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The request has ended: drop its state."""

    request: int


Message = Question | Reply | Forget


def encode(message: Message) -> bytes:
    """The message as bytes."""
    match message:
        case Question():
            return _encode_question(message)
        case Reply():
            return _words(_REPLY, *_tag_words(message.tag), *_flatten(message.candidates))
        case Forget():
            return _words(_FORGET, 0, message.request, 0, 0)


def decode(frame: bytes) -> Message:
    """Raises ``ValueError`` for bytes that are no message."""
    kind, *tag = _read_words(frame, 0, _TAG_WORDS)
    epoch, request, step, base_length = tag
    if kind == _FORGET:
        return Forget(request=request)
    found = Tag(epoch=epoch, request=request, step=step, base_length=base_length)
    if kind == _REPLY:
        return Reply(tag=found, candidates=_read_candidates(frame))
    if kind == _QUESTION:
        return _read_question(frame, found)
    raise ValueError(f"a message of kind {kind}")


def _encode_question(question: Question) -> bytes:
    features = question.features
    rows, width = (0, 0) if features is None else features.shape
    dtype = 0 if features is None else _DTYPES.index(features.dtype)
    sizes = (question.start, len(question.token_ids), question.max_draft_tokens, rows, width, dtype)
    words = _words(_QUESTION, *_tag_words(question.tag), *sizes, *question.token_ids)
    return words if features is None else words + _bytes_of(features)


def _read_question(frame: bytes, tag: Tag) -> Question:
    sizes = _read_words(frame, _TAG_WORDS, _QUESTION_WORDS - _TAG_WORDS)
    start, count, max_draft_tokens, rows, width, dtype = sizes
    if not (0 <= dtype < len(_DTYPES) and min(start, rows, width) >= 0):
        raise ValueError("a question with impossible sizes")
    token_ids = _read_words(frame, _QUESTION_WORDS, count)
    data = memoryview(frame)[8 * (_QUESTION_WORDS + count) :]
    if len(data) != rows * width * _DTYPES[dtype].itemsize:
        raise ValueError("a question whose features were cut off")
    features = None
    if rows:
        features = torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype]).view(rows, width)
    return Question(
        tag=tag,
        start=start,
        token_ids=token_ids,
        max_draft_tokens=max_draft_tokens,
        features=features,
    )


def _flatten(candidates: Sequence[Sequence[int]]) -> list[int]:
    return [len(candidates), *map(len, candidates), *(token for c in candidates for token in c)]


def _read_candidates(frame: bytes) -> tuple[tuple[int, ...], ...]:
    place = _TAG_WORDS
    (count,) = _read_words(frame, place, 1)
    lengths = _read_words(frame, place + 1, count)
    place += 1 + count
    candidates = []
    for length in lengths:
        candidates.append(_read_words(frame, place, length))
        place += length
    if 8 * place != len(frame):
        raise ValueError("a reply with more words than it announces")
    return tuple(candidates)


def _tag_words(tag: Tag) -> tuple[int, int, int, int]:
    return tag.epoch, tag.request, tag.step, tag.base_length


def _words(*words: int) -> bytes:
    return np.array(words, dtype="<i8").tobytes()


def _read_words(frame: bytes, first: int, count: int) -> tuple[int, ...]:
    if not 0 <= count <= _MAX_TOKENS:
        raise ValueError(f"a count of {count}")
    try:
        return struct.unpack_from(f"<{count}q", frame, 8 * first)
    except struct.error as error:
        raise ValueError("a message that was cut off") from error


def _bytes_of(features: Tensor) -> bytes:
    return features.contiguous().view(torch.uint8).numpy().tobytes()
