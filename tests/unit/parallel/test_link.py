"""Links: whole frames in order, no blocking, damage dropped, death noticed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel import link as link_module
from parallel.link import Link, LinkClosedError, SocketLink, memory_pair


def socket_pair() -> tuple[SocketLink, SocketLink]:
    """Two ends of a real socket."""
    left, right = socket.socketpair()
    return SocketLink(left), SocketLink(right)


@pytest.fixture(params=[socket_pair, memory_pair], ids=["socket", "memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    make: Callable[[], tuple[Link, Link]] = request.param
    ends = make()
    yield ends
    for end in ends:
        end.close()


def test_frames_arrive_whole_and_in_order(pair: tuple[Link, Link]) -> None:
    left, right = pair
    frames = [b"", b"a", bytes(range(256)) * 5]
    for frame in frames:
        left.send(frame)
    assert [right.receive(1.0) for _ in frames] == frames
    right.send(b"back")
    assert left.receive(None) == b"back"


def test_nothing_to_read_is_none_after_the_timeout(pair: tuple[Link, Link]) -> None:
    started = time.monotonic()
    assert pair[0].receive(0.02) is None
    assert time.monotonic() - started >= 0.02
    assert pair[0].receive(0.0) is None


def test_a_hung_up_peer_is_noticed_behind_its_last_frames(pair: tuple[Link, Link]) -> None:
    left, right = pair
    right.send(b"last words")
    right.close()
    assert left.receive(1.0) == b"last words"
    with pytest.raises(LinkClosedError):
        left.receive(1.0)


def test_a_waiting_reader_notices_a_hang_up(pair: tuple[Link, Link]) -> None:
    left, right = pair
    timer = threading.Timer(0.05, right.close)
    timer.start()
    with pytest.raises(LinkClosedError):
        left.receive(5.0)
    timer.join()


def test_sending_to_a_peer_that_never_reads_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_WAITING_BYTES", 8 << 20)
    left, right = socket_pair()
    for _ in range(6):
        left.send(bytes(1 << 20))
    with pytest.raises(LinkClosedError, match="has not read"):
        left.send(bytes(6 << 20))
    left.close()
    right.close()


def test_what_did_not_fit_is_sent_while_waiting_for_an_answer() -> None:
    left, right = socket_pair()
    large = bytes(4 << 20)
    left.send(large)
    received: list[bytes | None] = []

    def answer() -> None:
        received.append(right.receive(5.0))
        right.send(b"got it")

    thread = threading.Thread(target=answer)
    thread.start()
    assert left.receive(5.0) == b"got it"
    thread.join()
    assert received == [large]
    left.close()
    right.close()


@given(st.binary(min_size=1, max_size=64), st.data())
def test_a_damaged_payload_is_dropped_and_the_next_frame_arrives(
    payload: bytes, data: st.DataObject
) -> None:
    raw, peer = socket.socketpair()
    receiver = SocketLink(peer)
    sender_raw, sender_peer = socket.socketpair()
    sender = SocketLink(sender_raw)
    sender.send(payload)
    frame = bytearray(sender_peer.recv(1 << 16))
    place = data.draw(st.integers(4, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    sender.send(b"whole")
    raw.sendall(frame + sender_peer.recv(1 << 16))
    assert receiver.receive(1.0) == b"whole"
    assert receiver.num_damaged == 1
    for end in (raw, peer, sender_raw, sender_peer):
        end.close()


def test_a_damaged_length_closes_the_link() -> None:
    raw, peer = socket.socketpair()
    raw.sendall(b"\xff" * 16)
    with pytest.raises(LinkClosedError, match="announced a frame of"):
        SocketLink(peer).receive(1.0)
    raw.close()
    peer.close()


def test_memory_link_faults() -> None:
    left, right = memory_pair()
    left.faults.drop = lambda: True
    left.send(b"lost")
    left.faults.drop = lambda: False
    left.faults.corrupt = lambda: True
    left.send(b"damaged")
    left.faults.corrupt = lambda: False
    left.faults.rewrite = lambda frame: frame[::-1]
    left.faults.delay = lambda: 0.05
    left.send(b"abc")
    assert right.receive(0.0) is None
    assert right.receive(5.0) == b"cba"
    assert right.num_damaged == 1
