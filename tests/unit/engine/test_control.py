"""A verdict survives its packing; the message has one fixed size."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block import SequenceRows
from engine.candidates import chain, merge_candidates
from engine.control import Verdict, decode, encode, message_length
from engine.kv_cache import Commit, KVCopy

COMMITS = st.lists(
    st.builds(
        Commit,
        st.integers(0, 7),
        st.integers(0, 5000),
        st.lists(st.integers(0, 60), min_size=1, max_size=9).map(tuple),
    ),
    max_size=4,
)
TREES = st.one_of(
    st.lists(st.integers(0, 10**5), min_size=1, max_size=9).map(chain),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4).map(
        lambda candidates: merge_candidates(7, candidates, 12)
    ),
)
ROWS = st.lists(
    st.builds(SequenceRows, st.integers(0, 7), st.integers(0, 5000), TREES, *[st.booleans()] * 2),
    max_size=4,
)


@settings(deadline=None)
@given(commits=COMMITS, rows=ROWS, step=st.integers(0, 2**40), stop=st.booleans())
def test_decode_inverts_encode(
    commits: list[Commit], rows: list[SequenceRows], step: int, *, stop: bool
) -> None:
    """Catches fields in another order on the two sides: ranks would run different rows."""
    copies = tuple(KVCopy(source=c.slot, target=9, length=c.start_length) for c in commits)
    verdict = Verdict(
        step=step, epoch=3, commits=tuple(commits), copies=copies, rows=tuple(rows), stop=stop
    )
    length = message_length(max_sequences=4, max_rows=48)
    message = encode(verdict, length)
    assert message.numel() == length
    assert decode(message) == verdict
