"""A step context that is obviously right: one sequence from position 0, plain causal attention."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.block import RowLayout
from engine.interfaces import Site
from engine.kv_cache import KVCache


class CausalContext:
    """Rows are the tokens of one sequence in order; nothing is cached."""

    def __init__(self, num_rows: int) -> None:
        self.positions = torch.arange(num_rows)
        self.observed: list[tuple[int, Site, Tensor]] = []

    @property
    def layout(self) -> RowLayout:
        raise NotImplementedError("a causal context has no cache, so no layout")

    @property
    def kv(self) -> KVCache:
        raise NotImplementedError("a causal context has no cache")

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[R, Q, D], [R, K, D], [R, K, D] -> [R, Q, D]; head by head."""
        del layer_index
        rows, num_heads, head_dim = query.shape
        group = num_heads // key.shape[1]
        hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        outputs = []
        for head in range(num_heads):
            scores = query[:, head] @ key[:, head // group].T / head_dim**0.5
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append(weights @ value[:, head // group])
        return torch.stack(outputs, dim=1)

    def observe(self, layer_index: int, site: Site, hidden: Tensor) -> None:
        self.observed.append((layer_index, site, hidden.clone()))
