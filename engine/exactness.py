"""Row invariance: which row counts give every row the bits it has in plain decoding.

A kernel may compute the same row differently in blocks of different sizes (another tiling, another
split of a sum), and a near-tie then flips a token. ``exactness="strict"`` measures at start which
row counts are safe on this machine and pads blocks, plain decoding's included, to the next safe
one. Our native kernels are row-invariant by construction, so there the test confirms that nothing
needs padding. Idea: batch-invariant kernels (Thinking Machines, vLLM's VLLM_BATCH_INVARIANT),
extended from requests in a batch to rows of a verification block.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.block import SequenceRows, build_block
from engine.candidates import TokenTree
from engine.kv_cache import KVCache
from engine.models.decoder import Decoder
from engine.step_context import AttentionBackend, BlockContext
from parallel.collectives import broadcast_int64
from parallel.mesh import Mesh

TESTED_ROWS = (*range(1, 34), 40, 48, 49, 64, 65, 96, 128)
_PREFIX = 37
"""Committed length during the test: no multiple of any vector width."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowPadding:
    """Row counts that are safe, in increasing order; empty means every count is."""

    safe_rows: tuple[int, ...] = ()

    def rows_for(self, num_rows: int) -> int:
        """Rows to run so that ``num_rows`` are safe; beyond the tested counts, as they are."""
        index = bisect_left(self.safe_rows, num_rows)
        return self.safe_rows[index] if index < len(self.safe_rows) else num_rows


@torch.inference_mode()
def find_row_padding(
    model: Decoder,
    kv: KVCache,
    mesh: Mesh,
    attention: AttentionBackend,
    *,
    row_counts: Sequence[int] = TESTED_ROWS,
) -> RowPadding:
    """Self-test this rank's first layer and vocabulary head; all ranks agree on the result.

    Collective: every rank of the mesh must call it. Overwrites the scratch and slot 0 of an unused
    cache.
    """
    counts = [count for count in row_counts if count <= kv.max_rows]
    hidden = _random_rows(max(counts), model)
    _fill_prefix(kv)
    reference = [_pair(model, kv, attention, hidden, row) for row in range(max(counts))]
    safe = torch.ones(len(counts), dtype=torch.int64)
    for index, count in enumerate(counts):
        rows = _run(model, kv, attention, hidden[:count])
        equal = (torch.equal(rows[row], reference[row]) for row in range(count))
        safe[index] = all(equal)
    agreed = _agree(safe, mesh)
    kept = tuple(count for count, good in zip(counts, agreed, strict=True) if good)
    if len(kept) == len(counts):
        return RowPadding()
    logger.info("blocks are padded to row counts %s", kept)
    return RowPadding(kept)


def _pair(
    model: Decoder, kv: KVCache, attention: AttentionBackend, hidden: Tensor, row: int
) -> Tensor:
    """A row's result in the smallest block that holds it and its parent, row 0."""
    other = max(row, 1) if hidden.shape[0] > 1 else 0
    return _run(model, kv, attention, hidden[[0, other]])[min(row, 1)]


def _run(model: Decoder, kv: KVCache, attention: AttentionBackend, hidden: Tensor) -> Tensor:
    """[n, ...]: one layer, and top logits, of a pending token with n-1 siblings below it."""
    count = hidden.shape[0]
    tree = TokenTree((0,) * count, (-1, *[0] * (count - 1)))
    block = build_block([SequenceRows(0, _PREFIX, tree, wants_all=True)])
    layer = next(iter(model.layers.values()))
    output: Tensor = layer(hidden, BlockContext(block, kv, attention))
    if model.head is None:
        return output.double()
    values, ids, runner_up = model.top(output)
    heads = torch.stack([values.double(), ids.double(), runner_up.double()], dim=1)
    return torch.cat([output.double(), heads], dim=1)


def _random_rows(count: int, model: Decoder) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, model.config.hidden_size, generator=generator).to(model.dtype)


def _fill_prefix(kv: KVCache) -> None:
    generator = torch.Generator().manual_seed(1)
    for cache in (kv.keys, kv.values):
        part = cache[:, 0, :, :_PREFIX]
        part.copy_(torch.randn(part.shape, generator=generator))


def _agree(safe: Tensor, mesh: Mesh) -> list[bool]:
    """A count is safe if it is safe on every rank."""
    agreed = safe.clone()
    for rank in range(mesh.world_size):
        theirs = safe.clone() if rank == mesh.rank else torch.empty_like(safe)
        agreed &= broadcast_int64(theirs, mesh, src=rank)
    return [bool(good) for good in agreed.tolist()]
