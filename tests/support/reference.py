"""Slow and obvious versions of what the product does fast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.interfaces import Site
from engine.models.decoder import Decoder


class CausalContext:
    """A step context for one whole sequence: plain causal attention, nothing cached."""

    def __init__(self, length: int) -> None:
        self.positions = torch.arange(length)
        self.observed: dict[tuple[int, Site], Tensor] = {}

    def attend(
        self, layer_index: int, query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor
    ) -> Tensor:
        """Causal attention over the sequence's own rows."""
        del layer_index
        group = query_RQD.shape[1] // key_RKD.shape[1]
        key = key_RKD.repeat_interleave(group, dim=1).transpose(0, 1)
        value = value_RKD.repeat_interleave(group, dim=1).transpose(0, 1)
        return functional.scaled_dot_product_attention(
            query_RQD.transpose(0, 1), key, value, is_causal=True
        ).transpose(0, 1)

    def observe(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Keep every residual state."""
        self.observed[layer_index, site] = hidden_RH.clone()


def greedy_decode(model: Decoder, prompt_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    """Plain greedy decoding that recomputes the whole sequence for every token."""
    token_ids = list(prompt_ids)
    for _ in range(max_tokens):
        hidden = model(torch.tensor(token_ids), CausalContext(len(token_ids)))
        token_ids.append(int(model.logits(hidden[-1:]).argmax()))
    return tuple(token_ids[len(prompt_ids) :])


def find_continuations(
    token_ids: Sequence[int], *, match_length: int, max_candidates: int, max_tokens: int
) -> tuple[tuple[int, ...], ...]:
    """Brute-force copy search: scan every earlier position, newest first."""
    length = len(token_ids)
    suffix = tuple(token_ids[length - match_length :])
    kept: list[tuple[int, ...]] = []
    for end in range(length - 1, match_length - 1, -1):
        if tuple(token_ids[end - match_length : end]) != suffix or len(kept) == max_candidates:
            continue
        candidate = tuple(token_ids[end : end + max_tokens])
        if any(other[: len(candidate)] == candidate for other in kept):
            continue
        extended = [i for i, other in enumerate(kept) if candidate[: len(other)] == other]
        if extended:
            kept[extended[0]] = candidate
        else:
            kept.append(candidate)
    return tuple(kept)
