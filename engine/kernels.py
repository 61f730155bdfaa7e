"""Which kernels compute the linear parts of a pass, chosen once after the weights are loaded."""

from __future__ import annotations

import logging

import torch

from engine.methods import Kernels
from engine.models.decoder import Decoder
from engine.models.packed import pack_linears
from engine.native import nativize, unsupported_reason

logger = logging.getLogger(__name__)

_FAST_DTYPES = (torch.float32, torch.bfloat16)


def install_kernels(model: Decoder, kernels: Kernels) -> bool:
    """Replace the model's layers by the chosen kernels; returns whether they are the native ones.

    Raises:
        ValueError: native kernels were asked for and cannot be had; the sentence says why.
    """
    if kernels == "torch" or (kernels == "auto" and model.dtype not in _FAST_DTYPES):
        return False
    if kernels in ("auto", "native"):
        reason = unsupported_reason(model)
        if reason is None:
            nativize(model)
            return True
        if kernels == "native":
            raise ValueError(f"native kernels are not available: {reason}")
        logger.warning("native kernels are not available (%s): using packed ones", reason)
    pack_linears(model)
    return False
