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

from engine.records import DraftSampling, Proposal
from engine.sampling import SamplingParams

_QUESTION, _REPLY, _FORGET = 1, 2, 3
_TAG_WORDS = 5
_QUESTION_WORDS = _TAG_WORDS + 12
_GREEDY, _COUPLED, _PROBABILISTIC = 0, 1, 2
_DTYPES = (torch.float32, torch.bfloat16, torch.float64)
_MAX_TOKENS = 1 << 24
_SUM_TOLERANCE = 1e-6


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
    sampling: DraftSampling | None = None
    """How to draw draft tokens; None: greedily."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Candidate continuations of the pending token, best first."""

    tag: Tag
    candidates: tuple[tuple[int, ...], ...]
    proposals: tuple[Proposal, ...] = ()
    """What the tokens of the only candidate were drawn from."""

    @property
    def is_sound(self) -> bool:
        """Whether proposals, where there are some, are what one chain was really drawn from.

        A wrong one would bend the distribution of the output.
        """
        if not self.proposals:
            return True
        if [len(candidate) for candidate in self.candidates] != [len(self.proposals)]:
            return False
        pairs = zip(self.candidates[0], self.proposals, strict=True)
        return all(token in one.token_ids and _is_distribution(one) for token, one in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The request has ended: drop its state."""

    request: int


Message = Question | Reply | Forget


def _is_distribution(proposal: Proposal) -> bool:
    probabilities = proposal.probabilities
    positive = all(0.0 <= probability <= 1.0 for probability in probabilities)
    distinct = len(set(proposal.token_ids)) == len(proposal.token_ids)
    return positive and distinct and abs(sum(probabilities) - 1.0) < _SUM_TOLERANCE


def encode(message: Message) -> bytes:
    """The message as bytes."""
    match message:
        case Question():
            return _encode_question(message)
        case Reply():
            words = [*_flatten(message.candidates), *_proposal_words(message.proposals)]
            return _words(_REPLY, *_tag_words(message.tag), *words)
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
        candidates, place = _read_candidates(frame)
        return Reply(tag=found, candidates=candidates, proposals=_read_proposals(frame, place))
    if kind == _QUESTION:
        return _read_question(frame, found)
    raise ValueError(f"a message of kind {kind}")


def _encode_question(question: Question) -> bytes:
    features = question.features
    rows, width = (0, 0) if features is None else features.shape
    dtype = 0 if features is None else _DTYPES.index(features.dtype)
    sizes = (question.start, len(question.token_ids), question.max_draft_tokens, rows, width, dtype)
    head = (*_tag_words(question.tag), *sizes, *_sampling_words(question.sampling))
    words = _words(_QUESTION, *head, *question.token_ids)
    return words if features is None else words + _bytes_of(features)


def _read_question(frame: bytes, tag: Tag) -> Question:
    numbers = _read_words(frame, _TAG_WORDS, _QUESTION_WORDS - _TAG_WORDS)
    start, count, max_draft_tokens, rows, width, dtype = numbers[:6]
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
        sampling=_read_sampling(numbers[6:]),
    )


def _sampling_words(sampling: DraftSampling | None) -> tuple[int, ...]:
    if sampling is None:
        return (_GREEDY, 0, 0, 0, 0, 0)
    params, mode = sampling.params, _COUPLED if sampling.is_coupled else _PROBABILISTIC
    bits = (_bits(params.temperature), _bits(params.top_p), _bits(params.min_p))
    return (mode, params.seed, params.top_k, *bits)


def _read_sampling(words: Sequence[int]) -> DraftSampling | None:
    """Raises ``ValueError`` for values that nobody could have asked for."""
    mode, seed, top_k, *bits = words
    if mode == _GREEDY:
        return None
    temperature, top_p, min_p = map(_number, bits)
    params = SamplingParams(
        temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k, seed=seed
    )
    return DraftSampling(params=params, is_coupled=mode == _COUPLED)


def _proposal_words(proposals: Sequence[Proposal]) -> list[int]:
    """Their number, then each with its number of tokens, the tokens and the probabilities."""
    words = [len(proposals)]
    for one in proposals:
        words += [len(one.token_ids), *one.token_ids, *map(_bits, one.probabilities)]
    return words


def _read_proposals(frame: bytes, place: int) -> tuple[Proposal, ...]:
    (count,) = _read_words(frame, place, 1)
    place += 1
    proposals = []
    for _ in range(count):
        (size,) = _read_words(frame, place, 1)
        token_ids = _read_words(frame, place + 1, size)
        bits = _read_words(frame, place + 1 + size, size)
        proposals.append(Proposal(token_ids, tuple(map(_number, bits))))
        place += 1 + 2 * size
    if 8 * place != len(frame):
        raise ValueError("a reply with more words than it announces")
    return tuple(proposals)


def _bits(number: float) -> int:
    """A float as the integer with the same 64 bits."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits)


def _number(bits: int) -> float:
    (number,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(number)


def _flatten(candidates: Sequence[Sequence[int]]) -> list[int]:
    return [len(candidates), *map(len, candidates), *(token for c in candidates for token in c)]


def _read_candidates(frame: bytes) -> tuple[tuple[tuple[int, ...], ...], int]:
    """The candidates, and the place of the word behind them."""
    place = _TAG_WORDS
    (count,) = _read_words(frame, place, 1)
    lengths = _read_words(frame, place + 1, count)
    place += 1 + count
    candidates = []
    for length in lengths:
        candidates.append(_read_words(frame, place, length))
        place += length
    return tuple(candidates), place


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
