"""A drafter behind a link: same drafts as in process, and faults cost drafts only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest
import torch

from drafters.messages import Question, Reply, Tag, decode, encode
from drafters.remote import MIN_DEADLINE_SECONDS, SILENT_MISSES, RemoteDrafter, RoundTrip
from drafters.service import serve_drafter
from engine.copy_source import NO_COPIES
from engine.records import Draft, SequenceView
from parallel.link import MemoryLink, memory_pair
from tests.support.toy_drafter import ToyDrafter

VOCAB = 97


class Pool:
    """Serves every new connection by a thread with a toy drafter of its own."""

    def __init__(self) -> None:
        self.ends: list[MemoryLink] = []
        self.drafters: list[ToyDrafter] = []
        self.threads: list[threading.Thread] = []

    def connect(self) -> MemoryLink:
        here, there = memory_pair()
        drafter = ToyDrafter(vocab_size=VOCAB)
        thread = threading.Thread(target=serve_drafter, args=(there, drafter))
        thread.start()
        self.ends.append(there)
        self.drafters.append(drafter)
        self.threads.append(thread)
        return here


@contextmanager
def remote(pool: Pool, *, seconds: float = 5.0) -> Iterator[RemoteDrafter]:
    """A connected drafter that waits ``seconds`` or so for its first reply."""
    drafter = RemoteDrafter(pool.connect, vocab_size=VOCAB)
    drafter.round_trip.seconds = seconds
    try:
        assert drafter.wait_until_up(5.0)
        yield drafter
    finally:
        drafter.close()
        for end, thread in zip(pool.ends, pool.threads, strict=True):
            end.close()
            thread.join(5.0)
            assert not thread.is_alive()


def view(tokens: list[int], name: str = "r", max_draft_tokens: int = 5) -> SequenceView:
    """A sequence with one feature row per committed position."""
    return SequenceView(
        request_id=name,
        token_ids=tokens,
        copies=NO_COPIES,
        max_draft_tokens=max_draft_tokens,
        probe_score=None,
        features=torch.tensor([[float(token % 5)] for token in tokens[:-1]]),
    )


def test_drafts_equal_those_in_process_although_context_is_sent_once() -> None:
    pool, random = Pool(), Random(0)
    with remote(pool) as drafter:
        sequences = {"a": [3, 4], "b": [9]}
        for _ in range(30):
            name = random.choice("ab")
            sequences[name] += [random.randrange(VOCAB) for _ in range(random.randrange(1, 5))]
            here = view(sequences[name], name)
            assert drafter.draft(here) == ToyDrafter(vocab_size=VOCAB).draft(here)
        assert drafter.counters.answered == drafter.counters.asked == 30
        drafter.forget("a")
        drafter.forget("never seen")
        assert drafter.draft(view(sequences["b"], "b")).candidates
    assert pool.drafters[0].forgotten[0] in ("0", "1")


def test_a_short_remainder_limits_the_draft() -> None:
    with remote(Pool()) as drafter:
        assert len(drafter.draft(view([1, 2], max_draft_tokens=2)).candidates[0]) == 2


def test_a_late_reply_is_dropped_and_the_next_step_gets_its_own() -> None:
    pool = Pool()
    with remote(pool, seconds=0.001) as drafter:
        delays = [0.2, 0.0]
        pool.ends[0].faults.delay = lambda: delays.pop(0) if delays else 0.0
        assert drafter.draft(view([1, 2])) == Draft()
        assert drafter.counters.missed == 1
        drafter.round_trip.seconds = 5.0
        longer = view([1, 2, 3])
        assert drafter.draft(longer) == ToyDrafter(vocab_size=VOCAB).draft(longer)
        assert drafter.counters.stale == 1


def test_a_batch_is_asked_at_once_and_a_lost_reply_costs_one_draft() -> None:
    pool = Pool()
    with remote(pool) as drafter:
        views = [view([number, 3], f"r{number}") for number in range(4)]
        expected = [ToyDrafter(vocab_size=VOCAB).draft(one) for one in views]
        assert drafter.draft_batch(views) == expected
        losses = iter([False, True, False, False])
        pool.ends[0].faults.drop = lambda: next(losses, False)
        drafter.round_trip.seconds = 0.05
        longer = [view([number, 3, 8], f"r{number}") for number in range(4)]
        found = drafter.draft_batch(longer)
        assert [bool(draft.candidates) for draft in found] == [True, False, True, True]
        assert (drafter.counters.answered, drafter.counters.missed) == (7, 1)


@pytest.mark.parametrize(
    ("rewrite", "counter"),
    [
        (lambda _: b"garbage", "malformed"),
        (lambda frame: frame[:-1], "malformed"),
        (lambda frame: _changed(frame, 10**9), "out_of_vocabulary"),
        (lambda frame: _changed(frame, -1), "out_of_vocabulary"),
    ],
)
def test_nonsense_is_counted_and_costs_the_draft_only(
    rewrite: Callable[[bytes], bytes], counter: str
) -> None:
    pool = Pool()
    with remote(pool, seconds=0.05) as drafter:
        pool.ends[0].faults.rewrite = rewrite
        assert drafter.draft(view([1, 2])) == Draft()
        assert getattr(drafter.counters, counter) == 1
        pool.ends[0].faults.rewrite = lambda frame: frame
        drafter.round_trip.seconds = 5.0
        assert drafter.draft(view([1, 2, 5])).candidates


def _changed(frame: bytes, token: int) -> bytes:
    """A well-formed reply with another first token."""
    reply = decode(frame)
    assert isinstance(reply, Reply)
    candidates = ((token, *reply.candidates[0][1:]), *reply.candidates[1:])
    return encode(Reply(tag=reply.tag, candidates=candidates))


def test_a_silent_drafter_is_no_longer_waited_for_until_it_speaks_again() -> None:
    pool = Pool()
    with remote(pool, seconds=0.002) as drafter:
        pool.ends[0].faults.drop = lambda: True
        tokens = [1, 2]
        for _ in range(SILENT_MISSES):
            tokens = [*tokens, 3]
            assert drafter.draft(view(tokens)) == Draft()
        assert drafter.is_silent
        pool.ends[0].faults.drop = lambda: False
        for _ in range(1000):
            tokens = [*tokens, 3]
            if drafter.draft(view(tokens)).candidates:
                break
            time.sleep(0.005)
        drafter.round_trip.seconds = 5.0
        assert drafter.draft(view([*tokens, 4])).candidates


def test_a_reply_under_an_old_epoch_is_stale() -> None:
    pool = Pool()
    with remote(pool, seconds=0.05) as drafter:

        def older(frame: bytes) -> bytes:
            reply = decode(frame)
            assert isinstance(reply, Reply)
            fields = {name: getattr(reply.tag, name) for name in ("request", "step", "base_length")}
            tag = type(reply.tag)(epoch=reply.tag.epoch - 1, **fields)
            return encode(Reply(tag=tag, candidates=reply.candidates))

        pool.ends[0].faults.rewrite = older
        assert drafter.draft(view([1, 2])) == Draft()
        assert drafter.counters.stale == 1


def test_a_dead_drafter_is_replaced_and_told_everything_again() -> None:
    pool = Pool()
    with remote(pool) as drafter:
        assert drafter.draft(view([1, 2])).candidates
        pool.ends[0].close()
        assert drafter.draft(view([1, 2, 3])) == Draft()
        assert drafter.wait_until_up(5.0)
        longer = view([1, 2, 3, 4])
        assert drafter.draft(longer) == ToyDrafter(vocab_size=VOCAB).draft(longer)
        assert drafter.counters.replaced == 1


def test_without_a_drafter_steps_go_on() -> None:
    def refuse() -> MemoryLink:
        raise ConnectionError("nobody there")

    drafter = RemoteDrafter(refuse, vocab_size=VOCAB)
    assert drafter.draft(view([1, 2])) == Draft()
    assert drafter.counters.unavailable == 1
    drafter.forget("r")
    drafter.close()


def test_a_lost_question_makes_the_service_ask_for_a_new_connection() -> None:
    pool = Pool()
    with remote(pool, seconds=0.05) as drafter:
        drafter._link.faults.drop = lambda: True  # type: ignore[union-attr]
        assert drafter.draft(view([1, 2])) == Draft()
        drafter._link.faults.drop = lambda: False  # type: ignore[union-attr]
        assert drafter.draft(view([1, 2, 3])) == Draft()
        assert drafter.wait_until_up(5.0)
        drafter.round_trip.seconds = 5.0
        assert drafter.draft(view([1, 2, 3, 4])).candidates


def test_only_the_newest_question_of_a_request_is_answered() -> None:
    here, there = memory_pair()
    drafter = ToyDrafter(vocab_size=VOCAB)
    for step, tokens in enumerate([[1, 2], [3], [4, 5]]):
        length = sum(map(len, [[1, 2], [3], [4, 5]][: step + 1]))
        tag = _tag(step, length)
        start = length - len(tokens)
        here.send(
            encode(Question(tag=tag, start=start, token_ids=tuple(tokens), max_draft_tokens=3))
        )
    thread = threading.Thread(target=serve_drafter, args=(there, drafter))
    thread.start()
    frame = here.receive(5.0)
    assert frame is not None
    reply = decode(frame)
    assert isinstance(reply, Reply)
    assert reply.tag == _tag(2, 5)
    here.close()
    thread.join(5.0)
    assert drafter.num_calls == 1


def _tag(step: int, length: int) -> Tag:
    return Tag(epoch=1, request=0, step=step, base_length=length)


def test_the_deadline_follows_the_replies() -> None:
    trip = RoundTrip(seconds=0.0)
    assert trip.deadline_seconds == MIN_DEADLINE_SECONDS
    trip.seconds = 0.1
    assert trip.deadline_seconds == pytest.approx(0.15)
