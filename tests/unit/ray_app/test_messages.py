"""Frames carry every record unchanged, and garbage is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.records import FinishReason, Request, TokenEvent, TokenLogprobs, TokenSource
from engine.sampling import SamplingParams
from ray_app.messages import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Accepted,
    Add,
    Cancel,
    Hello,
    Message,
    Refused,
    Stop,
    Tokens,
    decode,
    encode,
    frame_length,
)

texts = st.text(max_size=20)
token_ids = st.lists(st.integers(0, 2**31), max_size=8).map(tuple)


sources: st.SearchStrategy[TokenSource] = st.sampled_from(["copy", "neural", "verifier"])
reasons: st.SearchStrategy[FinishReason | None] = st.sampled_from([None, "stop", "length"])
events = st.builds(
    TokenEvent,
    request_id=texts,
    token_ids=token_ids,
    sources=st.lists(sources, max_size=8).map(tuple),
    finish_reason=reasons,
    logprobs=st.lists(
        st.builds(
            TokenLogprobs,
            token_id=st.integers(0, 99),
            logprob=st.floats(-90, 0),
            rank=st.integers(1, 99),
            top=st.lists(st.tuples(st.integers(0, 99), st.floats(-90, 0)), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
)
requests = st.builds(
    Request,
    request_id=texts,
    prompt_ids=token_ids,
    max_tokens=st.integers(1, 10**6),
    ignore_eos=st.booleans(),
    sampling=st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        seed=st.integers(-(2**63), 2**63 - 1),
        logit_bias=st.lists(st.tuples(st.integers(0, 99), st.floats(-9, 9)), max_size=2).map(tuple),
        bad_words=st.lists(token_ids.filter(bool), max_size=2).map(tuple),
        logprobs=st.none() | st.integers(0, 20),
    ),
)
messages = st.one_of(
    st.builds(Hello, texts),
    st.builds(Add, requests),
    st.builds(Cancel, texts),
    st.just(Stop()),
    st.builds(Accepted, texts),
    st.builds(Refused, texts, texts),
    st.builds(Tokens, st.lists(events, max_size=4).map(tuple)),
)


@given(messages)
def test_a_frame_carries_the_record_unchanged(message: Message) -> None:
    frame = encode(message)
    body = frame[LENGTH_BYTES:]
    assert frame_length(frame[:LENGTH_BYTES]) == len(body)
    assert decode(body) == message


@pytest.mark.parametrize("body", [b"", b"{", b"Stop\n3", b"Unknown\n{}", b"\xff", b"Add\n{}"])
def test_garbage_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of this protocol"):
        decode(body)


def test_an_impossible_length_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        frame_length((MAX_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))
