"""A sharding plan: a table of parameter-name patterns beside single-device model code.

The model never mentions a rank. The plan says, for one rank, which runs of a full parameter it
keeps; the same table narrows a built model (``parallel.tensor``) and tells the weight loader what
to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from torch import Tensor, cat, empty


class ShardStyle(Enum):
    """How a parameter is split over the tensor-parallel ranks."""

    COLUMN = "column"
    """Output features (rows of the weight) are split; the output stays split."""
    ROW = "row"
    """Input features (columns of the weight) are split; partial outputs are summed."""
    VOCAB = "vocab"
    """Rows of the embedding are split over the vocabulary; partial outputs are summed."""
    REPLICATE = "replicate"
    """Every rank holds the full parameter."""

    @property
    def dim(self) -> int | None:
        """The dimension that is split; None when nothing is."""
        return {"column": 0, "vocab": 0, "row": 1}.get(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one rank keeps of a parameter: runs along the split dimension, joined in this order.

    A merged weight has several runs: [q heads | k heads | v heads] keeps one run of each.
    """

    style: ShardStyle
    runs: tuple[range, ...] = ()

    @property
    def length(self) -> int:
        """Local extent along the split dimension."""
        return sum(len(run) for run in self.runs)

    def narrow(self, full: Tensor) -> Tensor:
        """The local part of a full tensor (real or meta), contiguous.

        A meta tensor gets its shape directly: the first ``cat`` on the meta device makes torch
        import its compiler, seconds at every start.
        """
        dim = self.style.dim
        if dim is None:
            return full
        if full.is_meta:
            shape = [*full.shape[:dim], self.length, *full.shape[dim + 1 :]]
            return empty(shape, dtype=full.dtype, device=full.device)
        parts = [full.narrow(dim, run.start, len(run)) for run in self.runs]
        return cat(parts, dim).contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan:
    """Pattern -> shard, for one rank; ``*`` matches any part of a name."""

    shards: Mapping[str, Shard] = field(default_factory=dict)

    def shard(self, name: str) -> Shard:
        """The shard of a parameter; every parameter must match exactly one pattern."""
        found = [shard for pattern, shard in self.shards.items() if fnmatchcase(name, pattern)]
        assert len(found) == 1, f"{name} matches {len(found)} patterns of the sharding plan"
        return found[0]
