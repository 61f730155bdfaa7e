"""From token events to text that may be shown: whole characters, stop strings, who proposed what.

A stop string may end in the middle of a token, and in the middle of a block of accepted drafts:
tokens are looked at one by one, and whatever comes behind the stop string is neither shown nor
counted (vllm#47616's class).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.records import TokenEvent, TokenLogprobs, TokenSource
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How an answer's text is cut and shown."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Whether the stop string, or the token that stopped, is shown."""
    skip_special_tokens: bool = True
    min_tokens: int = 0
    """Tokens before a stop string counts."""


@dataclass(frozen=True, slots=True)
class Run:
    """Text of one source."""

    source: TokenSource
    text: str


@dataclass(slots=True, kw_only=True)
class Piece:
    """What became visible, and the tokens that were taken in for it."""

    runs: list[Run] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_last: bool = False
    stop_reason: str | int | None = None
    """The stop string or the request's own stop token that ended the answer."""

    @property
    def text(self) -> str:
        """All runs together."""
        return "".join(run.text for run in self.runs)


class TextStream:
    """One answer's text as it grows."""

    def __init__(self, tokenizer: Tokenizer, options: TextOptions) -> None:
        self._options = options
        self._detokenizer = tokenizer.stream(skip_special_tokens=options.skip_special_tokens)
        self._eos_ids = frozenset(tokenizer.eos_token_ids)
        self._held: list[Run] = []
        """Not shown yet, because a stop string may have begun in it."""
        self._num_tokens = 0
        self.finished_by_string = False
        """Whether a stop string ended the answer; what the engine still sends is not wanted."""

    def push(self, event: TokenEvent) -> Piece:
        """Take in an event; returns what may be shown now."""
        piece = Piece()
        for index, token in enumerate(event.token_ids):
            is_end = event.finish_reason == "stop" and index == len(event.token_ids) - 1
            self._take(piece, event, index)
            if not is_end or self._options.include_stop:
                self._hold(event.sources[index], self._detokenizer.push([token]))
            elif token not in self._eos_ids:
                piece.stop_reason = token
            if self._stop_at_string(piece):
                return piece
        if event.finish_reason is not None:
            self._finish(piece, event.sources[-1])
        else:
            self._show(piece, self._length() - self._beginning_of_stop())
        return piece

    def _take(self, piece: Piece, event: TokenEvent, index: int) -> None:
        self._num_tokens += 1
        piece.token_ids.append(event.token_ids[index])
        if event.logprobs:
            piece.logprobs.append(event.logprobs[index])

    def _finish(self, piece: Piece, source: TokenSource) -> None:
        self._hold(source, self._detokenizer.finish())
        if not self._stop_at_string(piece):
            self._show(piece, self._length())
            piece.is_last = True

    def _hold(self, source: TokenSource, text: str) -> None:
        if text:
            self._held.append(Run(source, text))

    def _stop_at_string(self, piece: Piece) -> bool:
        """Show what comes before a stop string, if one is complete, and end the answer."""
        if not self._options.stop or self._num_tokens < self._options.min_tokens:
            return False
        text = "".join(run.text for run in self._held)
        found = [(at, stop) for stop in self._options.stop if (at := text.find(stop)) >= 0]
        if not found:
            return False
        start, stop = min(found)
        self._show(piece, start + (len(stop) if self._options.include_stop else 0))
        piece.stop_reason, piece.is_last, self.finished_by_string = stop, True, True
        return True

    def _length(self) -> int:
        return sum(len(run.text) for run in self._held)

    def _beginning_of_stop(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        if not self._options.stop:
            return 0
        text = "".join(run.text for run in self._held)
        longest = min(max(map(len, self._options.stop)) - 1, len(text))
        return next(
            (n for n in range(longest, 0, -1) if _begins_any(text[-n:], self._options.stop)), 0
        )

    def _show(self, piece: Piece, length: int) -> None:
        """Move so many held characters into the piece."""
        taken, self._held = _split(self._held, length)
        piece.runs += _merged(taken)


def _begins_any(text: str, strings: Iterable[str]) -> bool:
    return any(string.startswith(text) for string in strings)


def _split(runs: list[Run], length: int) -> tuple[list[Run], list[Run]]:
    """The first ``length`` characters, and the rest."""
    taken: list[Run] = []
    for index, run in enumerate(runs):
        if length < len(run.text):
            head, tail = run.text[:length], run.text[length:]
            return [*taken, Run(run.source, head)], [Run(run.source, tail), *runs[index + 1 :]]
        taken.append(run)
        length -= len(run.text)
    return taken, []


def _merged(runs: list[Run]) -> Iterator[Run]:
    """Neighbours of one source as one."""
    open_run: Run | None = None
    for run in runs:
        if not run.text:
            continue
        if open_run is not None and open_run.source == run.source:
            open_run = Run(run.source, open_run.text + run.text)
            continue
        if open_run is not None:
            yield open_run
        open_run = run
    if open_run is not None:
        yield open_run
