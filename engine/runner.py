"""One rank's forward pass: embed or receive, this stage's layers, then logits or send.

The probe is evaluated by its owner, tensor-parallel rank 0 of the stage that holds its layer, for
every row of the block, and (unless the owner is the coordinator itself) broadcast: the EARLY
message of the design.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.block import Block, SequenceRows, build_block
from engine.control import Verdict
from engine.exactness import RowPadding
from engine.features import FeatureProjection, FeatureReader
from engine.interfaces import Site, TopTokens
from engine.judge import BlockResult, Readings
from engine.kv_cache import KVCache
from engine.models.decoder import Decoder
from engine.probe import Probe
from engine.step_context import AttentionBackend, BlockContext
from parallel.collectives import broadcast_floats, gather_logits, gather_top, recv_rows, send_rows
from parallel.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Readouts:
    """What is read from the residual stream during a pass."""

    probe: Probe | None = None
    probe_stage: int = 0
    """The pipeline stage that holds the probe's layer."""
    projections: tuple[FeatureProjection, ...] = ()
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
        self._probe = readouts.probe
        self._probe_owner = mesh.owner_rank(readouts.probe_stage)
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
        scores = self._share_scores(taps.probe, block)
        features = None
        if taps.features is not None:
            features = taps.features.finish(padded, self._mesh, self.model.dtype)
        if not self._mesh.is_last_stage:
            return None
        top, logits = self._top(hidden[block.logit_rows], block.sampled)
        scores_list = None if scores is None else scores.tolist()
        readings = Readings(probe_scores=scores_list, features=features, logits=logits)
        return BlockResult.from_top(block, top, readings)

    def _taps(self, projection: int) -> _Taps:
        """What this rank reads during a pass: a stage's first rank speaks for the stage."""
        probe = _ProbeReader(self._probe) if self._owns_probe else None
        if projection == 0 or self._mesh.tp_rank != 0:
            return _Taps(probe, None, frozenset())
        chosen = self._projections[projection - 1]
        return _Taps(probe, FeatureReader(chosen), chosen.layers)

    @property
    def _owns_probe(self) -> bool:
        return self._probe is not None and self._mesh.rank == self._probe_owner

    def _forward(self, block: Block, taps: _Taps) -> Tensor:
        layers = taps.layers | (frozenset() if self._probe is None else {self._probe.layer})
        tap = None if taps.probe is None and taps.features is None else taps
        context = BlockContext(block, self.kv, self._attention, tap, layers)
        if self._mesh.is_first_stage:
            hidden: Tensor = self.model(block.token_ids, context)
        else:
            shape = (block.token_ids.numel(), self.model.config.hidden_size)
            received = torch.empty(shape, dtype=self.model.dtype)
            hidden = self.model(recv_rows(received, self._mesh), context)
        if not self._mesh.is_last_stage:
            send_rows(hidden, self._mesh)
        return hidden

    def _share_scores(self, reader: _ProbeReader | None, block: Block) -> Tensor | None:
        """Every row's score on the coordinator; other ranks only take part in the broadcast."""
        if self._probe is None:
            return None
        if self._probe_owner == self._mesh.coordinator_rank:
            return reader.scores if reader is not None else None
        scores = torch.empty(block.token_ids.numel())
        if reader is not None:
            assert reader.scores is not None, "the owner's stage holds the probe's layer"
            scores = reader.scores
        return broadcast_floats(scores, self._mesh, src=self._probe_owner)

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

    probe: _ProbeReader | None
    features: FeatureReader | None
    layers: frozenset[int]
    """Layers that the features come from."""

    def __call__(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Show a residual state to both."""
        if self.probe is not None:
            self.probe(layer_index, site, hidden_RH)
        if self.features is not None:
            self.features(layer_index, site, hidden_RH)


class _ProbeReader:
    """A tap that scores every row where the probe's layer is done, while later layers still run."""

    def __init__(self, probe: Probe | None) -> None:
        assert probe is not None
        self._probe = probe
        self._at = (probe.layer, Site(probe.site))
        self.scores: Tensor | None = None

    def __call__(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        if (layer_index, site) == self._at:
            self.scores = self._probe.score(hidden_RH)
