"""Slow and obvious versions of what the product does fast."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.models.decoder import Decoder
from tests.support.causal import CausalContext


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
