"""Verifier features for neural drafters: a linear map of a few residual states, row by row.

EAGLE-3's ``fc`` and SD²'s ``W_hml`` are both sums of one product per tapped layer, so every
pipeline stage adds the products of its own layers and the partial sums travel with the hidden
states; only the coordinator keeps the result (design 3, EARLY). Medusa's heads read what the
verifier's own head reads: one state behind a norm, without a product.

A tap j is Hugging Face's ``hidden_states[j]``: the residual stream behind the first j layers.

Legend: T taps, F features, H hidden, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.interfaces import Site
from engine.models.layers import RMSNorm
from engine.models.packed import Product, packed_product
from parallel.collectives import recv_rows, send_rows
from parallel.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureProjection:
    """A linear map of some residual states."""

    taps: tuple[int, ...]
    """Ascending, each from 1 to the number of layers."""
    weights: tuple[Tensor, ...]
    """One [F, H] per tap."""
    bias: Tensor | None = None
    """[F]."""
    norms: tuple[RMSNorm, ...] | None = None
    """One per tap, applied to the state before its product; None: states are taken raw."""
    _products: dict[tuple[int, ...], Product] = field(default_factory=dict, init=False, repr=False)
    """Packed weights by the indices of the taps, made when they are first needed."""

    def __post_init__(self) -> None:
        assert len(self.taps) == len(self.weights) > 0
        assert all(tap > 0 for tap in self.taps), "the embedding itself cannot be tapped"

    @property
    def num_features(self) -> int:
        """F."""
        return self.weights[0].shape[0]

    @property
    def layers(self) -> frozenset[int]:
        """Layers whose output is tapped."""
        return frozenset(tap - 1 for tap in self.taps)

    def partial(self, states: Mapping[int, Tensor]) -> Tensor:
        """[R, F]: the sum of the products of some taps' states [R, H], by index of the tap.

        One product of the states side by side: a stage always has the same taps.
        """
        indices = tuple(sorted(states))
        if indices not in self._products:
            weight_FI = torch.cat([self.weights[index] for index in indices], dim=1)
            self._products[indices] = packed_product(weight_FI)
        normed = [self._normed(index, states[index]) for index in indices]
        return self._products[indices](torch.cat(normed, dim=-1))

    def _normed(self, index: int, hidden_RH: Tensor) -> Tensor:
        if self.norms is None:
            return hidden_RH
        normed_RH: Tensor = self.norms[index](hidden_RH)
        return normed_RH


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormedState:
    """One residual state behind a norm, as it is: F is H."""

    tap: int
    """From 1 to the number of layers."""
    norm: RMSNorm

    @property
    def taps(self) -> tuple[int, ...]:
        """The only one."""
        return (self.tap,)

    @property
    def num_features(self) -> int:
        """F."""
        return self.norm.weight.shape[0]

    @property
    def bias(self) -> None:
        """Nothing is added."""
        return

    @property
    def layers(self) -> frozenset[int]:
        """The layer whose output is tapped."""
        return frozenset((self.tap - 1,))

    def partial(self, states: Mapping[int, Tensor]) -> Tensor:
        """[R, F]: the norm of the only state, which has the index 0."""
        normed_RH: Tensor = self.norm(states[0])
        return normed_RH


Projection = FeatureProjection | NormedState
"""What a drafter wants to know of every verifier row."""


class FeatureReader:
    """A tap that keeps the states of this stage's layers; only on a stage's first rank."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._index_of = {tap - 1: index for index, tap in enumerate(projection.taps)}
        self._states: dict[int, Tensor] = {}

    @property
    def layers(self) -> frozenset[int]:
        """Layers whose output is tapped."""
        return self._projection.layers

    def __call__(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Keep the layer's output, if it is tapped."""
        index = self._index_of.get(layer_index)
        if site is Site.MLP and index is not None:
            self._states[index] = hidden_RH

    def finish(self, rows: int, mesh: Mesh, dtype: torch.dtype) -> Tensor | None:
        """Add up along the pipeline: [R, F] on the coordinator, None on earlier stages."""
        if self._states:
            total_RF = self._projection.partial(self._states)
        else:
            total_RF = torch.zeros(rows, self._projection.num_features, dtype=dtype)
        if not mesh.is_first_stage:
            total_RF = total_RF + recv_rows(torch.empty_like(total_RF), mesh)
        if not mesh.is_last_stage:
            send_rows(total_RF, mesh)
            return None
        bias = self._projection.bias
        return total_RF if bias is None else total_RF + bias


class FeatureHistory:
    """Features of a sequence's committed positions, in order; grows as they are committed."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, 0)
        self._length = 0

    def append(self, features_RF: Tensor) -> None:
        """Take the rows of newly committed positions."""
        end = self._length + len(features_RF)
        if end > len(self._buffer) or self._buffer.shape[1:] != features_RF.shape[1:]:
            grown = features_RF.new_empty(max(2 * end, 256), *features_RF.shape[1:])
            if self._length:
                grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : end] = features_RF
        self._length = end

    def __len__(self) -> int:
        """Positions held."""
        return self._length

    def prefix(self, length: int) -> FeatureHistory:
        """A history of its own that starts with the first ``length`` positions of this one."""
        found = FeatureHistory()
        found.append(self._buffer[:length])
        return found

    @property
    def rows(self) -> Tensor | None:
        """[committed, F], or None when none were read."""
        return self._buffer[: self._length] if self._length else None
