"""One rank's forward pass: embed or receive, this stage's layers, then logits or send.

The probe is evaluated by its owner, tensor-parallel rank 0 of the stage that holds its layer, for
every row of the block, and (unless the owner is the coordinator itself) broadcast: the EARLY
message of the design.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.block import Block, SequenceRows, build_block
from engine.control import Verdict
from engine.exactness import RowPadding
from engine.interfaces import Site, TopTokens
from engine.judge import BlockResult
from engine.kv_cache import KVCache
from engine.models.decoder import Decoder
from engine.probe import Probe
from engine.step_context import AttentionBackend, BlockContext, Tap
from parallel.collectives import broadcast_floats, gather_top, recv_rows, send_rows
from parallel.mesh import Mesh


class ModelRunner:
    """Owns the model shard, its KV cache and the probe."""

    def __init__(
        self,
        *,
        model: Decoder,
        kv: KVCache,
        mesh: Mesh,
        attention: AttentionBackend,
        padding: RowPadding,
        probe: Probe | None,
        probe_stage: int = 0,
    ) -> None:
        self.model, self.kv, self._mesh = model, kv, mesh
        self._attention, self._padding = attention, padding
        self._probe, self._probe_owner = probe, mesh.owner_rank(probe_stage)

    @torch.inference_mode()
    def execute(self, verdict: Verdict) -> BlockResult | None:
        """Commit the last step's accepted rows, run this step's; None before the last stage."""
        self.kv.commit(verdict.commits)
        return self.run(verdict.rows)

    @torch.inference_mode()
    def run(self, rows: tuple[SequenceRows, ...]) -> BlockResult | None:
        """One forward pass; every rank of the mesh calls it with the same rows."""
        num_rows = sum(len(part.tree.token_ids) for part in rows)
        padded = min(self._padding.rows_for(num_rows), self.kv.max_rows)
        block = build_block(rows, padded_rows=padded)
        reader = _ProbeReader(self._probe) if self._owns_probe else None
        hidden = self._forward(block, reader)
        scores = self._share_scores(reader, block)
        if not self._mesh.is_last_stage:
            return None
        top = self._top(hidden[block.logit_rows])
        return BlockResult.from_top(block, top, None if scores is None else scores.tolist())

    @property
    def _owns_probe(self) -> bool:
        return self._probe is not None and self._mesh.rank == self._probe_owner

    def _forward(self, block: Block, tap: Tap | None) -> Tensor:
        layers = None if self._probe is None else frozenset({self._probe.layer})
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

    def _top(self, hidden_LH: Tensor) -> TopTokens:
        return TopTokens(*gather_top(*self.model.top(hidden_LH), self._mesh))


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
