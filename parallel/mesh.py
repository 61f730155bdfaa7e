"""The grid of ranks: tensor parallel inside a stage, pipeline parallel across stages.

``rank = stage * tp_size + tp_rank``: a stage's ranks are neighbours, so that a tensor-parallel
group sits on one node. A ``Mesh`` is passed as an argument wherever a rank matters; nothing global
is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from parallel.rendezvous import DEFAULT_TIMEOUT
from parallel.shared_memory import SharedMemoryGather, share_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """One rank's place in the grid and the groups it talks through."""

    tp_rank: int
    tp_size: int
    stage: int
    num_stages: int
    tp_group: ProcessGroup | None = None
    """The ranks of this stage; None when there is one."""
    world_group: ProcessGroup | None = None
    """All verifier ranks; None when there is one."""
    shared_memory: SharedMemoryGather | None = None
    """Memory that the ranks of this stage share; None where they cannot."""

    def __post_init__(self) -> None:
        assert 0 <= self.tp_rank < self.tp_size
        assert 0 <= self.stage < self.num_stages

    @classmethod
    def single(cls) -> Mesh:
        """The grid of one process, which needs no process group."""
        return cls(tp_rank=0, tp_size=1, stage=0, num_stages=1)

    @property
    def rank(self) -> int:
        """This rank's number in the world."""
        return self.stage * self.tp_size + self.tp_rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the grid."""
        return self.tp_size * self.num_stages

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank embeds the tokens."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes logits."""
        return self.stage == self.num_stages - 1

    @property
    def coordinator_rank(self) -> int:
        """World rank of the coordinator: tensor-parallel rank 0 of the last stage."""
        return (self.num_stages - 1) * self.tp_size

    @property
    def is_coordinator(self) -> bool:
        """Whether this rank takes the decisions."""
        return self.rank == self.coordinator_rank

    def owner_rank(self, stage: int) -> int:
        """World rank of tensor-parallel rank 0 of ``stage``, which speaks for the stage."""
        return stage * self.tp_size


def build_mesh(tp_size: int, num_stages: int, *, timeout: timedelta = DEFAULT_TIMEOUT) -> Mesh:
    """This process's mesh; collective over the default process group, which must be the grid.

    Raises:
        ValueError: the default process group is missing or has another size.
    """
    wanted = tp_size * num_stages
    if wanted == 1 and not dist.is_initialized():
        return Mesh.single()
    found = dist.get_world_size() if dist.is_initialized() else 1
    if found != wanted:
        raise ValueError(
            f"tensor_parallel_size={tp_size} times pipeline_parallel_size={num_stages} needs "
            f"{wanted} processes, but {found} were started"
        )
    stage, tp_rank = divmod(dist.get_rank(), tp_size)
    group = _stage_group(stage, tp_size, num_stages, timeout=timeout)
    return Mesh(
        tp_rank=tp_rank,
        tp_size=tp_size,
        stage=stage,
        num_stages=num_stages,
        tp_group=group,
        world_group=dist.group.WORLD if wanted > 1 else None,
        shared_memory=share_memory(group, timeout=timeout) if group is not None else None,
    )


def _stage_group(
    stage: int, tp_size: int, num_stages: int, *, timeout: timedelta
) -> ProcessGroup | None:
    """Every rank must create every group, in the same order; this rank keeps its own."""
    if tp_size == 1:
        return None
    groups: list[ProcessGroup] = [
        dist.new_group(list(range(first, first + tp_size)), timeout=timeout)
        for first in range(0, tp_size * num_stages, tp_size)
    ]
    return groups[stage]
