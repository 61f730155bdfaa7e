"""Merging two attention results over disjoint keys by log-sum-exp, in fp32 or better.

Names follow vLLM's merge_attn_states: prefix and suffix outputs with their log-sum-exp.
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge_attention_states(
    prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor, suffix_lse: Tensor
) -> Tensor:
    """Combine [.., R, D] outputs with their [.., R] log-sum-exps: exact in real arithmetic."""
    work = torch.promote_types(prefix_output.dtype, torch.float32)
    peak = torch.maximum(prefix_lse, suffix_lse)
    prefix_weight = (prefix_lse - peak).exp().unsqueeze(-1).to(work)
    suffix_weight = (suffix_lse - peak).exp().unsqueeze(-1).to(work)
    total = prefix_weight * prefix_output.to(work) + suffix_weight * suffix_output.to(work)
    return (total / (prefix_weight + suffix_weight)).to(prefix_output.dtype)
