"""One rank's forward pass: embed or receive, this stage's layers, then logits or send.

The probe is evaluated by its owner, tensor-parallel rank 0 of the stage that holds its layer, for
every row of the block, and (unless the owner is the coordinator itself) broadcast: the EARLY
message of the design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.block import Block, SequenceRows, build_block
from engine.control import Verdict
from engine.exactness import RowPadding
from engine.features import FeatureReader, Projection
from engine.interfaces import Site, TopTokens
from engine.judge import BlockResult, Readings
from engine.kv_cache import KVCache
from engine.models.decoder import Decoder
from engine.probe import Probe
from engine.step_context import AttentionBackend, BlockContext
from parallel.collectives import broadcast_floats, gather_logits, gather_top, recv_rows, send_rows
from parallel.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedProbe:
    """A probe and the pipeline stage that holds its layer."""

    probe: Probe
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readouts:
    """What is read from the residual stream during a pass."""

    probes: tuple[PlacedProbe, ...] = ()
    """Every method listens to one of them."""
    projections: tuple[Projection, ...] = ()
    """Features for neural drafters; a verdict says which, counted from 1."""


class ModelRunner:
    """Owns the model shard, its KV cache and what is read from its layers."""

    def __init__(
        self,
        *,
        model: Decoder,
        kv: KVCache,
        mesh: Mesh,
        attention: AttentionBackend,
        padding: RowPadding,
        readouts: Readouts,
    ) -> None:
        self.model, self.kv, self._mesh = model, kv, mesh
        self._attention, self._padding = attention, padding
        self._probes = readouts.probes
        self._owners = tuple(mesh.owner_rank(placed.stage) for placed in readouts.probes)
        self._projections = readouts.projections

    @torch.inference_mode()
    def execute(self, verdict: Verdict) -> BlockResult | None:
        """Commit the last step's accepted rows, run this step's; None before the last stage."""
        self.kv.commit(verdict.commits)
        self.kv.copy(verdict.copies)
        return self.run(verdict.rows, projection=verdict.projection)

    @torch.inference_mode()
    def run(self, rows: tuple[SequenceRows, ...], *, projection: int = 0) -> BlockResult | None:
        """One forward pass; every rank of the mesh calls it with the same arguments."""
        num_rows = sum(len(part.tree.token_ids) for part in rows)
        padded = min(self._padding.rows_for(num_rows), self.kv.max_rows)
        block = build_block(rows, padded_rows=padded)
        taps = self._taps(projection)
        hidden = self._forward(block, taps)
        scores = self._share_scores(taps.probes, block)
        features = None
        if taps.features is not None:
            features = taps.features.finish(padded, self._mesh, self.model.dtype)
        if not self._mesh.is_last_stage:
            return None
        top, logits = self._top(hidden[block.logit_rows], block.sampled)
        readings = Readings(
            probe_scores=tuple(one.tolist() for one in scores), features=features, logits=logits
        )
        return BlockResult.from_top(block, top, readings)

    def _taps(self, projection: int) -> _Taps:
        """What this rank reads during a pass: a stage's first rank speaks for the stage."""
        probes = {
            index: _ProbeReader(placed.probe)
            for index, (placed, owner) in enumerate(zip(self._probes, self._owners, strict=True))
            if self._mesh.rank == owner
        }
        if projection == 0 or self._mesh.tp_rank != 0:
            return _Taps(probes, None)
        return _Taps(probes, FeatureReader(self._projections[projection - 1]))

    def _forward(self, block: Block, taps: _Taps) -> Tensor:
        tap = taps if taps.layers else None
        context = BlockContext(block, self.kv, self._attention, tap, taps.layers)
        if self._mesh.is_first_stage:
            hidden: Tensor = self.model(block.token_ids, context)
        else:
            shape = (block.token_ids.numel(), self.model.config.hidden_size)
            received = torch.empty(shape, dtype=self.model.dtype)
            hidden = self.model(recv_rows(received, self._mesh), context)
        if not self._mesh.is_last_stage:
            send_rows(hidden, self._mesh)
        return hidden

    def _share_scores(self, readers: Mapping[int, _ProbeReader], block: Block) -> list[Tensor]:
        """Each probe's scores on the coordinator; other ranks only take part in broadcasts."""
        found = []
        for index, owner in enumerate(self._owners):
            scores = readers[index].read() if index in readers else None
            if owner != self._mesh.coordinator_rank:
                sent = torch.empty(block.token_ids.numel()) if scores is None else scores
                scores = broadcast_floats(sent, self._mesh, src=owner)
            if scores is not None:
                found.append(scores)
        return found

    def _top(self, hidden_LH: Tensor, sampled: list[int]) -> tuple[TopTokens, Tensor | None]:
        """Best tokens of all rows, and the whole vocabulary's logits of those sampled from."""
        if not sampled:
            return TopTokens(*gather_top(*self.model.top(hidden_LH), self._mesh)), None
        top, local_SV = self.model.top_and_logits(hidden_LH, sampled)
        whole_SV = gather_logits(local_SV, self._mesh, self.model.config.vocab_size)
        return TopTokens(*gather_top(*top, self._mesh)), whole_SV


@dataclass(frozen=True, slots=True)
class _Taps:
    """The readers of one pass on this rank."""

    probes: Mapping[int, _ProbeReader]
    """By the probe's index: those that this rank evaluates."""
    features: FeatureReader | None

    @property
    def layers(self) -> frozenset[int]:
        """Layers whose states are looked at."""
        probed = frozenset(reader.layer for reader in self.probes.values())
        return probed if self.features is None else probed | self.features.layers

    def __call__(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Show a residual state to all."""
        for reader in self.probes.values():
            reader(layer_index, site, hidden_RH)
        if self.features is not None:
            self.features(layer_index, site, hidden_RH)


class _ProbeReader:
    """A tap that scores every row where the probe's layer is done, while later layers still run."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._scores: Tensor | None = None

    @property
    def layer(self) -> int:
        return self._probe.layer

    def __call__(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        if layer_index == self._probe.layer and site is self._probe.site:
            self._scores = self._probe.score(hidden_RH)

    def read(self) -> Tensor:
        """[R] of the pass."""
        assert self._scores is not None, "the owner's stage holds the probe's layer"
        return self._scores
