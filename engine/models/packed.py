"""CPU matrices packed once for oneDNN, instead of at every call: 1.6 to 2.8x on the rows of a step.

The two operators are private to PyTorch (its compiler uses them for frozen weights), so they are
named here and nowhere else; where they or the CPU's support are absent, the plain layers stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.layers import Linear

Product = Callable[[Tensor], Tensor]
"""[R, I] -> [R, O]."""

_ROWS_HINT = 16
"""Rows of input that the layout is chosen for: between plain decoding and a wide block."""


class PackedLinear(nn.Module):
    """A ``Linear`` whose weight lies in oneDNN's own blocked layout."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        reorder = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001
        self.packed = reorder(weight.detach(), _ROWS_HINT)

    def forward(self, features_RI: Tensor) -> Tensor:
        """[R, I] -> [R, O]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            features_RI, self.packed, None, "none", [], ""
        )
        return output


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch on this CPU packs weights of ``dtype``."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    names = ("_reorder_linear_weight", "_linear_pointwise")
    if not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return dtype == torch.float32


def packed_product(weight_OI: Tensor) -> Product:
    """[R, I] -> [R, O] with a weight that lies packed where that is possible."""
    if _is_packable(weight_OI):
        return PackedLinear(weight_OI)
    return partial(functional.linear, weight=weight_OI)


def pack_linears(model: nn.Module) -> int:
    """Replace every packable ``Linear`` on the CPU, at any depth; in place. Returns how many."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear) and _is_packable(child.weight):
                setattr(parent, name, PackedLinear(child.weight))
                count += 1
    return count


def _is_packable(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.numel() > 0 and can_pack(weight.dtype)
