"""Which generated tokens were copied: the labels of the copy-intent probe.

A generated token is labelled 1 when some window of 5 tokens that contains it equals a window that
starts earlier in prompt and output together (SwitchSD, arXiv 2609.20186). The window may begin in
the prompt and may reach past the token: the label looks ahead inside a span, the probe that learns
it cannot.

``accepted_copy_lengths`` answers the other question, what a copy draft would have gained, and is
used to report how well the probe predicts that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WINDOW = 5
"""Length of the repeated window; equal to the default match length of copy drafting."""


def copy_labels(
    token_ids: Sequence[int], num_prompt_tokens: int, *, window: int = WINDOW
) -> Tensor:
    """[G] bool: whether each of the G generated tokens lies in a repeated window.

    One pass with a set of the windows seen so far: linear in the number of tokens.
    """
    assert 0 <= num_prompt_tokens <= len(token_ids)
    covered = torch.zeros(len(token_ids), dtype=torch.bool)
    seen: set[tuple[int, ...]] = set()
    for start in range(len(token_ids) - window + 1):
        content = tuple(token_ids[start : start + window])
        if content in seen:
            covered[start : start + window] = True
        seen.add(content)
    return covered[num_prompt_tokens:]


def accepted_copy_lengths(
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    *,
    match_length: int = 5,
    max_candidates: int = 10,
    max_tokens: int = 20,
) -> Tensor:
    """[G] int64: tokens that a copy drafted behind each generated token would have gained.

    -1 where the ``match_length`` tokens that end at the token did not occur before. Otherwise the
    longest agreement of the output with the continuations of the ``max_candidates`` most recent
    earlier occurrences, at most ``max_tokens``.
    """
    ends: dict[tuple[int, ...], list[int]] = {}
    lengths = torch.full((len(token_ids),), -1, dtype=torch.int64)
    for end in range(match_length, len(token_ids) + 1):
        earlier = ends.setdefault(tuple(token_ids[end - match_length : end]), [])
        if earlier and end > num_prompt_tokens:
            recent = earlier[-max_candidates:]
            lengths[end - 1] = max(_agreement(token_ids, old, end, max_tokens) for old in recent)
        earlier.append(end)
    return lengths[num_prompt_tokens:]


def _agreement(token_ids: Sequence[int], first: int, second: int, limit: int) -> int:
    """Length of the common run of tokens from two positions, ``first`` before ``second``."""
    limit = min(limit, len(token_ids) - second)
    # A draft is made from what is known at `second`, so it ends there.
    limit = min(limit, second - first)
    length = 0
    while length < limit and token_ids[first + length] == token_ids[second + length]:
        length += 1
    return length
