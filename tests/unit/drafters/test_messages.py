"""Messages of the drafter link: what is sent arrives, and garbage is refused."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drafters.messages import Forget, Question, Reply, Tag, decode, encode
from engine.records import DraftSampling, Proposal
from engine.sampling import SamplingParams

TAG = Tag(epoch=3, request=7, step=11, base_length=4)
TOKENS = st.integers(0, 2**40)


@given(st.lists(st.lists(TOKENS, max_size=6).map(tuple), max_size=4).map(tuple))
def test_replies_come_back(candidates: tuple[tuple[int, ...], ...]) -> None:
    reply = Reply(tag=TAG, candidates=candidates)
    assert decode(encode(reply)) == reply


def proposals(count: int) -> tuple[Proposal, ...]:
    """One per token of the chain 5, 6, ...: each of two tokens."""
    return tuple(Proposal((5 + index, 99), (0.25, 0.75)) for index in range(count))


def test_proposals_come_back() -> None:
    reply = Reply(tag=TAG, candidates=((5, 6, 7),), proposals=proposals(3))
    assert decode(encode(reply)) == reply
    assert reply.is_sound


@pytest.mark.parametrize(
    "reply",
    [
        Reply(tag=TAG, candidates=((5, 6),), proposals=proposals(3)),
        Reply(tag=TAG, candidates=((5,), (5,)), proposals=proposals(1)),
        Reply(tag=TAG, candidates=((8,),), proposals=proposals(1)),
        Reply(tag=TAG, candidates=((5,),), proposals=(Proposal((5, 6), (0.5, 0.6)),)),
        Reply(tag=TAG, candidates=((5,),), proposals=(Proposal((5, 5), (0.5, 0.5)),)),
        Reply(tag=TAG, candidates=((5,),), proposals=(Proposal((5, 6), (1.5, -0.5)),)),
        Reply(tag=TAG, candidates=((5,),), proposals=(Proposal((5,), (float("nan"),)),)),
    ],
)
def test_proposals_that_nothing_was_drawn_from_are_noticed(reply: Reply) -> None:
    """They would bend the output's distribution, so they must not reach the rejection rule."""
    assert not reply.is_sound


@pytest.mark.parametrize("is_coupled", [True, False])
def test_wishes_to_sample_come_back(*, is_coupled: bool) -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01, top_k=40, seed=-(2**63))
    sampling = DraftSampling(params=params, is_coupled=is_coupled)
    question = Question(tag=TAG, start=0, token_ids=(1,), max_draft_tokens=5, sampling=sampling)
    assert decode(encode(question)) == question


@given(st.lists(TOKENS, max_size=8).map(tuple), st.integers(0, 2**40))
def test_questions_come_back(token_ids: tuple[int, ...], start: int) -> None:
    question = Question(tag=TAG, start=start, token_ids=token_ids, max_draft_tokens=5)
    assert decode(encode(question)) == question


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_features_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    features = torch.randn(3, 5).to(dtype).T
    question = Question(tag=TAG, start=0, token_ids=(1, 2), max_draft_tokens=5, features=features)
    found = decode(encode(question))
    assert isinstance(found, Question)
    assert found.features is not None
    assert found.features.dtype == dtype
    assert torch.equal(found.features, features)


def test_forgetting_comes_back() -> None:
    assert decode(encode(Forget(request=5))) == Forget(request=5)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_but_never_crash(frame: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(frame)


@given(st.data())
def test_a_message_that_was_cut_off_or_damaged_never_crashes(data: st.DataObject) -> None:
    question = Question(
        tag=TAG, start=0, token_ids=(1, 2, 3), max_draft_tokens=5, features=torch.ones(2, 3)
    )
    replies = (
        Reply(tag=TAG, candidates=((1, 2), (3,))),
        Reply(tag=TAG, candidates=((5,),), proposals=proposals(1)),
    )
    for message in (question, *replies):
        frame = bytearray(encode(message))
        with pytest.raises(ValueError, match=r"."):
            decode(bytes(frame[: data.draw(st.integers(0, len(frame) - 1))]))
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(ValueError):
            decode(bytes(frame))
