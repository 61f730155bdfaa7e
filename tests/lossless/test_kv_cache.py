"""Any history of steps and commits leaves the cache that recomputation would make."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv_cache import Commit, KVCache, KVShape

LAYERS, HEADS, DIM, LENGTH, ROWS = 2, 2, 4, 40, 8


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """(slot, accepted scratch rows) per step: accepted rows rise, as nodes on a path do."""
    steps = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=4)),
            max_size=12,
        )
    )
    return [(slot, sorted(rows)) for slot, rows in steps]


@settings(deadline=None, max_examples=60)
@given(history=histories(), seed=st.integers(0, 100))
def test_committed_entries_equal_the_accepted_rows_in_order(
    history: list[tuple[int, list[int]]], seed: int
) -> None:
    """Catches a rejected row in the cache, a wrong slot, and a gap or overlap between commits."""
    generator = torch.Generator().manual_seed(seed)
    shape = KVShape(
        layer_indices=(3, 5),
        num_slots=3,
        num_kv_heads=HEADS,
        head_dim=DIM,
        max_length=12 * 4 + 1,
        max_rows=ROWS,
    )
    kv = KVCache(shape, dtype=torch.float32)
    expected: list[list[torch.Tensor]] = [[], [], []]
    for slot, rows in history:
        for layer in (3, 5):
            key = torch.randn(ROWS, HEADS, DIM, generator=generator)
            kv.write(layer, key, -key)
        start = len(expected[slot])
        expected[slot].extend(kv.scratch_keys[:, row].clone() for row in rows)
        kv.commit([Commit(slot, start, tuple(rows))])
    for slot, rows_LKD in enumerate(expected):
        for position, row_LKD in enumerate(rows_LKD):
            assert torch.equal(kv.keys[:, slot, :, position], row_LKD)
            assert torch.equal(kv.values[:, slot, :, position], -row_LKD)
        assert not kv.keys[:, slot, :, len(rows_LKD) :].any()
