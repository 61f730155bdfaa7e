"""Text from tokens: the same however it comes, cut at stop strings, nothing leaked behind them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.records import TokenEvent, TokenLogprobs, TokenSource
from engine.tokenizer import Tokenizer
from ray_app.text_stream import Piece, TextOptions, TextStream
from tests.support.tiny import EOS_ID

TEXT = "Größe: 🙂 one, two,\nthree; one, two."
SOURCES: tuple[TokenSource, ...] = ("copy", "neural", "verifier")


def events(token_ids: list[int], sizes: list[int], *, reason: str) -> list[TokenEvent]:
    """The tokens in groups; every source in turn."""
    found: list[TokenEvent] = []
    start, turn = 0, 0
    while start < len(token_ids):
        size = sizes[turn % len(sizes)]
        ids = tuple(token_ids[start : start + size])
        start += size
        turn += 1
        last = start >= len(token_ids)
        found.append(
            TokenEvent(
                request_id="r",
                token_ids=ids,
                sources=tuple(SOURCES[turn % 3] for _ in ids),
                finish_reason=reason if last else None,  # type: ignore[arg-type]
                logprobs=tuple(
                    TokenLogprobs(token_id=t, logprob=-1.0, rank=1, top=()) for t in ids
                ),
            )
        )
    return found


def run(tokenizer: Tokenizer, options: TextOptions, found: list[TokenEvent]) -> list[Piece]:
    stream, pieces = TextStream(tokenizer, options), []
    for event in found:
        pieces.append(stream.push(event))
        if pieces[-1].is_last:
            break
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    stop=st.lists(st.sampled_from(["one, t", "\n", "🙂", "öß", "zzz", ", "]), max_size=2),
    include=st.booleans(),
)
def test_text_does_not_depend_on_how_tokens_come(
    tokenizer: Tokenizer, sizes: list[int], stop: list[str], *, include: bool
) -> None:
    options = TextOptions(stop=tuple(stop), include_stop=include)
    pieces = run(tokenizer, options, events(tokenizer.encode(TEXT), sizes, reason="length"))
    ends = [(at, s) for s in stop if (at := TEXT.find(s)) >= 0]
    expected = TEXT
    if ends:
        # The stop string that is complete first ends the text.
        at, first = min(ends, key=lambda end: (end[0] + len(end[1].encode()), end[0]))
        expected = TEXT[: at + len(first)] if include else TEXT[:at]
        assert pieces[-1].stop_reason == first
    assert text_of(pieces) == expected
    assert pieces[-1].is_last
    assert sum(len(piece.logprobs) for piece in pieces) == sum(
        len(piece.token_ids) for piece in pieces
    )


def test_no_token_behind_a_stop_string_is_counted(tokenizer: Tokenizer) -> None:
    """vllm#47616: the ids of a whole block came out although the string ended in its middle."""
    ids = tokenizer.encode("ab stop cdef")
    [piece] = run(tokenizer, TextOptions(stop=("stop",)), events(ids, [99], reason="length"))
    assert piece.text == "ab "
    assert tokenizer.decode(piece.token_ids) == "ab stop"
    assert len(piece.logprobs) == len(piece.token_ids)


def test_what_may_begin_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    pieces = run(
        tokenizer,
        TextOptions(stop=("two three",)),
        events(tokenizer.encode("one two four"), [1], reason="length"),
    )
    shown = ""
    for piece in pieces:
        shown += piece.text
        assert "one two four".startswith(shown)
        assert "two " not in shown or "two f" in shown
    assert shown == "one two four"


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a.b.c.d.")
    options = TextOptions(stop=(".",), min_tokens=len(tokenizer.encode("a.b.c")))
    assert text_of(run(tokenizer, options, events(ids, [3], reason="length"))) != "a"


@pytest.mark.parametrize("include", [False, True])
def test_the_end_token_is_shown_only_when_asked(tokenizer: Tokenizer, *, include: bool) -> None:
    ids = [*tokenizer.encode("hi"), EOS_ID]
    options = TextOptions(include_stop=include, skip_special_tokens=False)
    pieces = run(tokenizer, options, events(ids, [2], reason="stop"))
    end = tokenizer.decode([EOS_ID], skip_special_tokens=False)
    assert text_of(pieces) == "hi" + (end if include else "")
    assert pieces[-1].stop_reason is None


def test_a_stop_token_of_the_requests_own_is_named(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hi!")
    pieces = run(tokenizer, TextOptions(), events(ids, [9], reason="stop"))
    assert text_of(pieces) == "hi"
    assert pieces[-1].stop_reason == ids[-1]


def test_runs_say_who_proposed_what(tokenizer: Tokenizer) -> None:
    random, ids = Random(1), tokenizer.encode(TEXT)
    found = events(ids, [random.randrange(1, 4) for _ in range(9)], reason="length")
    runs = [run_ for piece in run(tokenizer, TextOptions(), found) for run_ in piece.runs]
    assert "".join(run_.text for run_ in runs) == TEXT
    assert {run_.source for run_ in runs} == set(SOURCES)
