"""A block's layout against a mask written out by hand."""

from __future__ import annotations

import torch

from engine.attention.masks import ancestor_mask
from engine.block import SequenceRows, build_block
from engine.candidates import chain, merge_candidates


def test_mixed_block_has_the_mask_written_by_hand() -> None:
    """A prompt chunk, a trie and a padding row: nobody sees another sequence's rows."""
    chunk = SequenceRows(2, 10, chain([5, 6]), wants_all=False)
    trie = SequenceRows(0, 4, merge_candidates(7, [(1, 2), (3,)], 99), wants_all=True)
    block = build_block([chunk, trie], padded_rows=7)
    assert block.num_rows == 6
    assert block.token_ids.tolist() == [5, 6, 7, 1, 2, 3, 0]
    assert block.positions.tolist() == [10, 11, 4, 5, 6, 5, 0]
    assert block.logit_rows.tolist() == [1, 2, 3, 4, 5]
    assert block.row_starts == (0, 2)
    assert block.logit_starts == (0, 1)
    assert block.layout.row_slot.tolist() == [2, 2, 0, 0, 0, 0, 0]
    assert block.layout.row_prefix.tolist() == [10, 10, 4, 4, 4, 4, 0]
    assert ancestor_mask(block.layout).int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]


def test_path_rows_are_int32_and_in_path_order() -> None:
    """Kernels walk them as they are."""
    block = build_block([SequenceRows(0, 0, chain([1, 2, 3]), wants_all=True)])
    assert block.layout.path_rows.dtype == torch.int32
    assert block.layout.path_offsets.tolist() == [0, 1, 3, 6]
    assert block.layout.path_rows.tolist() == [0, 0, 1, 0, 1, 2]
