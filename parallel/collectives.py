"""The few collectives of the engine, each the identity on one rank.

On the CPU a sum over ranks is an all-gather and a sum in rank order. Gloo's own all-reduce adds in
an order that depends on an element's offset in the buffer, so a row's bits would change with the
number of rows beside it; exactness="strict" needs every row to have the same bits in every block.

Legend: R rows, H hidden, L rows whose logits are wanted.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.mesh import Mesh
from parallel.slices import even_range


def all_reduce(partial: Tensor, mesh: Mesh) -> Tensor:
    """Sum over the tensor-parallel ranks of this stage; every rank gets the same bits."""
    if mesh.tp_group is None:
        return partial
    if partial.device.type != "cpu":
        dist.all_reduce(partial, group=mesh.tp_group)
        return partial
    wide = torch.float64 if partial.dtype == torch.float64 else torch.float32
    first, *others = _gather(partial, mesh).unbind(0)
    total = first.to(wide)
    for other in others:
        total = total + other.to(wide)
    return total.to(partial.dtype)


def gather_top(
    values_L: Tensor, ids_L: Tensor, runner_up_L: Tensor, mesh: Mesh
) -> tuple[Tensor, Tensor, Tensor]:
    """Combine every vocabulary shard's best logit, its global id, and its second best logit.

    Ties go to the lowest global id, so that every tensor-parallel size gives the same token. Three
    numbers per row travel, packed as float64, in which ids are exact; full logits are never
    gathered.
    """
    if mesh.tp_group is None:
        return values_L, ids_L, runner_up_L
    packed = torch.stack([values_L.double(), ids_L.double(), runner_up_L.double()])
    values_PL, ids_PL, runner_up_PL = _gather(packed, mesh).unbind(1)
    best_L = values_PL.amax(0)
    winner_L = ids_PL.masked_fill(values_PL != best_L, torch.inf).amin(0)
    contenders_PL = torch.where(ids_PL == winner_L, runner_up_PL, values_PL)
    second_L = contenders_PL.amax(0)
    return best_L.to(values_L.dtype), winner_L.long(), second_L.to(runner_up_L.dtype)


def gather_logits(logits_SV: Tensor, mesh: Mesh, vocab_size: int) -> Tensor:
    """[S, vocab_size]: every vocabulary shard's columns side by side, for the rows sampled from.

    Shards may differ in width (``parallel.slices``), so they travel padded to the widest.
    """
    if mesh.tp_group is None:
        return logits_SV
    widths = [len(even_range(vocab_size, rank, mesh.tp_size)) for rank in range(mesh.tp_size)]
    padded_SW = logits_SV.new_zeros(logits_SV.shape[0], max(widths))
    padded_SW[:, : logits_SV.shape[1]] = logits_SV
    shards_PSW = _gather(padded_SW, mesh)
    return torch.cat([shards_PSW[rank, :, :width] for rank, width in enumerate(widths)], dim=1)


def broadcast_int64(block: Tensor, mesh: Mesh, *, src: int) -> Tensor:
    """Send ``block`` from world rank ``src`` to all ranks, in place; returns the block."""
    assert block.dtype == torch.int64
    return _broadcast(block, mesh, src)


def broadcast_floats(block: Tensor, mesh: Mesh, *, src: int) -> Tensor:
    """Send ``block`` from world rank ``src`` to all ranks, in place; returns the block."""
    assert block.is_floating_point()
    return _broadcast(block, mesh, src)


def send_rows(rows_RH: Tensor, mesh: Mesh) -> None:
    """Send rows to the next stage's rank with the same tensor-parallel number."""
    assert not mesh.is_last_stage
    dist.send(rows_RH.contiguous(), mesh.rank + mesh.tp_size, group=mesh.world_group)


def recv_rows(rows_RH: Tensor, mesh: Mesh) -> Tensor:
    """Fill ``rows_RH`` with what the previous stage sent; returns it."""
    assert not mesh.is_first_stage
    dist.recv(rows_RH, mesh.rank - mesh.tp_size, group=mesh.world_group)
    return rows_RH


def barrier(mesh: Mesh) -> None:
    """Wait until every rank is here."""
    if mesh.world_group is not None:
        dist.barrier(group=mesh.world_group)


def _broadcast(block: Tensor, mesh: Mesh, src: int) -> Tensor:
    if mesh.world_group is not None:
        assert block.is_contiguous()
        dist.broadcast(block, src, group=mesh.world_group)
    return block


def _gather(tensor: Tensor, mesh: Mesh) -> Tensor:
    """[P, ...]: every tensor-parallel rank's tensor, in rank order.

    Through shared memory where there is some; else through the group, called directly because the
    checks of ``dist.all_gather`` cost more than moving a few rows.
    """
    assert mesh.tp_group is not None
    if mesh.shared_memory is not None and mesh.shared_memory.fits(tensor):
        return mesh.shared_memory.gather(tensor)
    gathered = tensor.new_empty((mesh.tp_size, *tensor.shape))
    mesh.tp_group.allgather([list(gathered.unbind(0))], [tensor.contiguous()]).wait()
    return gathered
