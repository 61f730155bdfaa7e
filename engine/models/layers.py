"""The leaf layers of the decoder: linear, embedding, RMS norm, rotary embedding.

Legend: R rows, H hidden, I/O input and output features, A heads, D head_dim, S max_model_len.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.config import ModelConfig, RopeScaling


class Linear(nn.Module):
    """A matrix and nothing else, so that another kernel can take its place (``models.packed``)."""

    def __init__(
        self, in_features: int, out_features: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = _parameter(out_features, in_features, dtype=dtype, device=device)

    @property
    def in_features(self) -> int:
        """Input features held here."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Output features held here."""
        return self.weight.shape[0]

    def forward(self, features_RI: Tensor) -> Tensor:
        """[R, I] -> [R, O]."""
        return functional.linear(features_RI, self.weight)


class Embedding(nn.Module):
    """Token ids to rows."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = _parameter(vocab_size, hidden_size, dtype=dtype, device=device)

    def forward(self, ids_R: Tensor) -> Tensor:
        """[R] int64 -> [R, H]."""
        return functional.embedding(ids_R, self.weight)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, in fp32 (fp64 for fp64) as Llama does."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = _parameter(size, dtype=dtype, device=device)
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = features.to(wide_dtype(features.dtype))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(features.dtype)


class Rotary(nn.Module):
    """Rotary position embedding, half-split: dimension i turns with i + D/2.

    Su et al. 2021, arXiv 2104.09864, in the layout of Hugging Face's Llama. One table for all
    layers; it is not a weight, so it is real even when the model is built on the meta device.
    Angles are computed in fp32 (fp64 for fp64), then cast.
    """

    def __init__(self, config: ModelConfig, *, max_model_len: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = wide_dtype(dtype)
        inverse = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling, wide)
        angles = torch.arange(max_model_len, dtype=wide).unsqueeze(1) * inverse
        self.cos_SD: Tensor
        self.sin_SD: Tensor
        self.register_buffer("cos_SD", angles.cos().to(dtype), persistent=False)
        """[S, D / 2]"""
        self.register_buffer("sin_SD", angles.sin().to(dtype), persistent=False)
        """[S, D / 2]"""

    def forward(self, heads_RAD: Tensor, positions_R: Tensor) -> Tensor:
        """Turn every head of row r by the angle of its position: [R, A, D] -> the same."""
        cos = self.cos_SD.index_select(0, positions_R).unsqueeze(1)
        sin = self.sin_SD.index_select(0, positions_R).unsqueeze(1)
        low, high = heads_RAD.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None, dtype: torch.dtype
) -> Tensor:
    """[D / 2] radians per position."""
    exponents = torch.arange(0, head_dim, 2, dtype=dtype) / head_dim
    plain = 1.0 / (theta**exponents)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    return _llama3_frequencies(plain, scaling)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for norms, angles and logits: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _llama3_frequencies(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: keep short waves, stretch long ones, blend the others."""
    waves_in_original = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    keep = (waves_in_original - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    keep = keep.clamp(0, 1)
    return (1 - keep) * plain / scaling.factor + keep * plain


def _parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
