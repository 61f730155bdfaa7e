"""A tensor-parallel verifier on the ranks of a training, each of which has a batch of its own.

The ranks take turns: all run the first rank's batch together, then the second's, and each keeps the
states of its own. Every rank must therefore ask equally often, which the training loop does.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from drafters.training.frozen_verifier import FrozenVerifier, VerifierStates
from engine.models.decoder import Decoder
from parallel.mesh import Mesh
from parallel.slices import even_range


class ShardedVerifier(FrozenVerifier):
    """This rank's shard of a verifier; its vocabulary head is whole on every rank."""

    def __init__(self, model: Decoder, mesh: Mesh) -> None:
        """Collective over the mesh, which is one stage of all ranks of the training."""
        assert mesh.num_stages == 1, "the stages of a pipeline would wait for each other"
        super().__init__(model)
        self._mesh = mesh
        self.head_weight = _whole_head(self.head_weight, model.config.vocab_size, mesh)

    @torch.no_grad()
    def states(self, token_ids_BT: Tensor, taps: tuple[int, ...]) -> VerifierStates:
        """The states of this rank's batch; collective over the mesh."""
        own: VerifierStates | None = None
        for rank, shape in enumerate(self._shapes(token_ids_BT)):
            is_own = rank == self._mesh.rank
            batch_BT = token_ids_BT.contiguous() if is_own else token_ids_BT.new_empty(shape)
            dist.broadcast(batch_BT, rank, group=self._mesh.world_group)
            found = super().states(batch_BT, taps)
            own = found if is_own else own
        assert own is not None
        return own

    def _shapes(self, token_ids_BT: Tensor) -> list[list[int]]:
        """The shape of every rank's batch."""
        own = torch.tensor(token_ids_BT.shape)
        everybody = [torch.empty_like(own) for _ in range(self._mesh.world_size)]
        dist.all_gather(everybody, own, group=self._mesh.world_group)
        return [shape.tolist() for shape in everybody]


def _whole_head(shard: Tensor, vocab_size: int, mesh: Mesh) -> Tensor:
    """[V, H] from every rank's run of the vocabulary."""
    whole = shard.new_empty(vocab_size, shard.shape[1])
    for rank in range(mesh.tp_size):
        run = even_range(vocab_size, rank, mesh.tp_size)
        part = shard.contiguous() if rank == mesh.tp_rank else whole[run.start : run.stop].clone()
        dist.broadcast(part, rank, group=mesh.world_group)
        whole[run.start : run.stop] = part
    return whole
