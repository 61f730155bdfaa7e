"""Data-parallel ranks of a training: each holds the whole model and reads a share of every batch.

The ranks are those of the default process group, and all of them. The collectives of the training
loop are the identity on one rank. Sums travel in the order the back end chooses, the same for every
run with the same number of ranks.

Nothing here keeps the group itself: a gloo group that is still referenced when the interpreter ends
may abort the process, because its worker threads let go of tensors then (seen with torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_ELEMENTS = 1 << 22
"""Elements that travel together: few messages, and little memory beside the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """One rank's place among the data-parallel ranks."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size

    @classmethod
    def single(cls) -> DataParallel:
        """The only rank, which needs no process group."""
        return cls(rank=0, size=1)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.rank == 0


def data_parallel_world() -> DataParallel:
    """Every process of the default group is one data-parallel rank; without a group, one rank."""
    if not dist.is_initialized():
        return DataParallel.single()
    return DataParallel(rank=dist.get_rank(), size=dist.get_world_size())


def average(tensors: Sequence[Tensor], ranks: DataParallel) -> None:
    """Replace every tensor by its mean over the ranks, in place; all of one dtype and device."""
    if ranks.size == 1:
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat)
        flat /= ranks.size
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def total(values: Tensor, ranks: DataParallel) -> Tensor:
    """The sum over the ranks; ``values`` is left as it is."""
    summed = values.clone()
    if ranks.size > 1:
        dist.all_reduce(summed)
    return summed


def broadcast_from_first(tensors: Sequence[Tensor], ranks: DataParallel) -> None:
    """Give every rank the first rank's values, in place."""
    if ranks.size == 1:
        return
    for tensor in tensors:
        dist.broadcast(tensor, 0)


def wait_for_all(ranks: DataParallel) -> None:
    """Return when every rank is here."""
    if ranks.size > 1:
        dist.barrier()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        if bucket and filled + tensor.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket, filled = [], 0
        bucket.append(tensor)
        filled += tensor.numel()
    if bucket:
        yield bucket
