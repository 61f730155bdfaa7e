"""How a verdict reaches the ranks: nowhere in one process, one fixed-size broadcast otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.control import Verdict, decode, encode
from parallel.collectives import broadcast_int64
from parallel.mesh import Mesh


class LocalControl:
    """One process: there is nobody to tell."""

    def send(self, verdict: Verdict) -> None:
        """Nothing to do."""

    def receive(self) -> Verdict:
        """Never called: the only rank is the coordinator."""
        raise AssertionError("a single process has no followers")


@dataclass(frozen=True, slots=True)
class BroadcastControl:
    """One int64 broadcast of ``length`` words per verdict, from the coordinator."""

    mesh: Mesh
    length: int

    def send(self, verdict: Verdict) -> None:
        """Coordinator: send to all ranks."""
        message = encode(verdict, self.length)
        broadcast_int64(message, self.mesh, src=self.mesh.coordinator_rank)

    def receive(self) -> Verdict:
        """Other ranks: the coordinator's next verdict."""
        message = torch.empty(self.length, dtype=torch.int64)
        return decode(broadcast_int64(message, self.mesh, src=self.mesh.coordinator_rank))
