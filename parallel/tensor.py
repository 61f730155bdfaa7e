"""Tensor parallelism by hand: narrow a single-device model, sum where features were split.

After Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3): a column-split weight feeds a
row-split one, so attention and MLP each need one sum. A column-split linear layer is the model's
own layer with fewer rows, so it has no class here. DTensor does the same with 8x the host time per
layer.
"""

from __future__ import annotations

from torch import Tensor, nn

from parallel.collectives import all_reduce
from parallel.mesh import Mesh
from parallel.plan import ShardingPlan, ShardStyle


class RowParallelLinear(nn.Module):
    """A linear layer that holds some input features; its output is summed over the ranks."""

    def __init__(self, inner: nn.Module, mesh: Mesh) -> None:
        super().__init__()
        self.inner = inner
        self.mesh = mesh

    @property
    def in_features(self) -> int:
        """Local input features."""
        return int(self.inner.in_features)  # type: ignore[arg-type]

    @property
    def out_features(self) -> int:
        """Output features, all of them."""
        return int(self.inner.out_features)  # type: ignore[arg-type]

    def forward(self, features_RI: Tensor) -> Tensor:
        """[R, I local] -> [R, O], equal on every rank."""
        return all_reduce(self.inner(features_RI), self.mesh)


class VocabParallelEmbedding(nn.Module):
    """An embedding that holds one run of the vocabulary: other ids give zero, then ranks add."""

    def __init__(self, inner: nn.Module, vocab: range, mesh: Mesh) -> None:
        super().__init__()
        self.inner = inner
        self.vocab = vocab
        self.mesh = mesh

    def forward(self, ids_R: Tensor) -> Tensor:
        """[R] global ids -> [R, H], equal on every rank; exact: all but one summand are zero."""
        foreign_R = (ids_R < self.vocab.start) | (ids_R >= self.vocab.stop)
        local_R = (ids_R - self.vocab.start).masked_fill(foreign_R, 0)
        rows_RH = self.inner(local_R).masked_fill(foreign_R.unsqueeze(-1), 0)
        return all_reduce(rows_RH, self.mesh)


def apply_tensor_parallel(model: nn.Module, plan: ShardingPlan, mesh: Mesh) -> None:
    """Narrow every parameter to this rank's part and wrap the modules that must sum; in place.

    Works on a model on the meta device (weights are read later, local shapes only) and on a real
    one. Parameter names stay, but for ``.inner`` inside the two wrappers (see ``plain_name``). A
    parameter that two modules share stays shared.
    """
    if mesh.tp_size == 1:
        return
    narrowed: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        shard = plan.shard(name)
        if id(parameter) not in narrowed:
            local = nn.Parameter(shard.narrow(parameter.detach()), requires_grad=False)
            narrowed[id(parameter)] = local
        module_name, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module_name), leaf, narrowed[id(parameter)])
        if shard.style in (ShardStyle.ROW, ShardStyle.VOCAB):
            _wrap(model, module_name, shard.style, shard.runs[0], mesh)


def plain_name(name: str) -> str:
    """The single-device name of a parameter of a sharded model."""
    return name.replace(".inner.", ".")


def _wrap(model: nn.Module, name: str, style: ShardStyle, run: range, mesh: Mesh) -> None:
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    inner = model.get_submodule(name)
    wrapped: nn.Module = (
        RowParallelLinear(inner, mesh)
        if style is ShardStyle.ROW
        else VocabParallelEmbedding(inner, run, mesh)
    )
    setattr(parent, child, wrapped)
