"""A block: all new rows of one step, ragged over sequences.

A prompt chunk is a chain of known tokens, a plain decode step is one row, a draft is a tree. One
forward pass serves any mix. ``RowLayout`` is the block-sparse mask in the form kernels want: per
row the committed prefix of its slot and the list of new rows on its path. Padding rows see only
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.candidates import TokenTree

_LONG = 24
"""Rows from which numpy is faster than a loop."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of one sequence in a block."""

    slot: int
    committed_length: int
    tree: TokenTree
    wants_all: bool
    """Whether every row's next token is needed (decoding) or only the last row's (a prompt)."""
    wants_logits: bool = False
    """Whether the logits of those rows are needed, not their arg-max alone."""

    @property
    def num_wanted(self) -> int:
        """Rows whose next token is needed."""
        return len(self.tree.token_ids) if self.wants_all else 1


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which keys each row sees: int32 contiguous CPU tensors.

    Row r attends to cache positions ``0 .. row_prefix[r]-1`` of slot ``row_slot[r]`` and to the
    scratch rows ``path_rows[path_offsets[r]:path_offsets[r+1]]``, in that order; the last of them
    is r itself.
    """

    row_slot: Tensor
    row_prefix: Tensor
    path_offsets: Tensor
    path_rows: Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one step with everything a forward pass needs to know about them."""

    sequences: tuple[SequenceRows, ...]
    num_rows: int
    """Rows without padding."""
    token_ids: Tensor
    """[R] int64."""
    positions: Tensor
    """[R] int64, absolute."""
    layout: RowLayout
    logit_rows: Tensor
    """[L] int64: rows whose next token is wanted."""

    @property
    def row_starts(self) -> tuple[int, ...]:
        """First row of each sequence."""
        return _starts([len(rows.tree.token_ids) for rows in self.sequences])

    @property
    def logit_starts(self) -> tuple[int, ...]:
        """Index of each sequence's first entry in ``logit_rows``."""
        return _starts([rows.num_wanted for rows in self.sequences])

    @property
    def sampled(self) -> list[int]:
        """Indices into ``logit_rows`` of the rows whose whole logits are wanted."""
        starts = zip(self.logit_starts, self.sequences, strict=True)
        return [
            start + index
            for start, rows in starts
            if rows.wants_logits
            for index in range(rows.num_wanted)
        ]


def build_block(sequences: Sequence[SequenceRows], *, padded_rows: int | None = None) -> Block:
    """Lay out the rows of all sequences, then padding rows up to ``padded_rows``."""
    layout = _LayoutBuilder()
    for rows in sequences:
        layout.add(rows)
    num_rows = len(layout.token_ids)
    layout.pad((padded_rows or num_rows) - num_rows)
    return Block(
        sequences=tuple(sequences),
        num_rows=num_rows,
        token_ids=torch.tensor(layout.token_ids),
        positions=torch.tensor(layout.positions),
        layout=layout.build(),
        logit_rows=torch.tensor(layout.logit_rows),
    )


class _LayoutBuilder:
    """Collects rows in plain lists; tensors are made once at the end."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.logit_rows: list[int] = []
        self._slots: list[int] = []
        self._prefixes: list[int] = []
        self._path_lengths: list[int] = []
        self._paths: list[np.ndarray] = []

    def add(self, rows: SequenceRows) -> None:
        first, count = len(self.token_ids), len(rows.tree.token_ids)
        depths = rows.tree.depths
        self.token_ids.extend(rows.tree.token_ids)
        self.positions.extend(rows.committed_length + depth for depth in depths)
        self.logit_rows.extend(range(first if rows.wants_all else first + count - 1, first + count))
        self._slots.extend([rows.slot] * count)
        self._prefixes.extend([rows.committed_length] * count)
        self._path_lengths.extend(depth + 1 for depth in depths)
        self._paths.append(first + _path_nodes(rows.tree))

    def pad(self, count: int) -> None:
        first = len(self.token_ids)
        for values in (self.token_ids, self.positions, self._slots, self._prefixes):
            values.extend([0] * count)
        self._path_lengths.extend([1] * count)
        self._paths.append(np.arange(first, first + count))

    def build(self) -> RowLayout:
        offsets = np.zeros(len(self._path_lengths) + 1, dtype=np.int32)
        np.cumsum(self._path_lengths, out=offsets[1:])
        return RowLayout(
            row_slot=torch.tensor(self._slots, dtype=torch.int32),
            row_prefix=torch.tensor(self._prefixes, dtype=torch.int32),
            path_offsets=torch.from_numpy(offsets),
            path_rows=torch.from_numpy(np.concatenate(self._paths).astype(np.int32)),
        )


def _path_nodes(tree: TokenTree) -> np.ndarray:
    """All nodes' paths one after the other; a long chain (a prompt) gets the vectorised form."""
    if len(tree.token_ids) > _LONG and tree.is_chain:
        return np.tril_indices(len(tree.token_ids))[1]
    return np.array([node for path in tree.paths() for node in path])


def _starts(counts: Sequence[int]) -> tuple[int, ...]:
    starts, total = [], 0
    for count in counts:
        starts.append(total)
        total += count
    return tuple(starts)
