"""Text to train a copy-intent probe on without asking a verifier for answers.

``natural`` is text as people wrote it; ``constructed`` is the same with spans repeated by us, as a
prompt and an answer that copies from it. Both are read by the verifier, not written by it, which is
what SwitchSD's Figure 4 compares with the verifier's own answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from drafters.training.capture import Transcript

CONTEXT_SHARE = 0.25
"""Part of a natural text that counts as its prompt."""
SHORTEST_SPAN, LONGEST_SPAN = 6, 48
"""Tokens of a constructed copy."""


def natural_text(token_ids: Sequence[int]) -> Transcript:
    """The text's beginning as the prompt, the rest as the answer."""
    first = max(1, round(len(token_ids) * CONTEXT_SHARE))
    return Transcript(prompt_ids=tuple(token_ids[:first]), output_ids=tuple(token_ids[first:]))


def constructed_copies(
    source: Sequence[int], filler: Sequence[int], random: Random, *, max_tokens: int
) -> Transcript:
    """``source`` as the prompt; the answer alternates pieces of ``filler`` and spans of it."""
    answer: list[int] = []
    place = 0
    while place < len(filler) and len(answer) < max_tokens:
        piece = random.randint(SHORTEST_SPAN, LONGEST_SPAN)
        answer += filler[place : place + piece]
        place += piece
        length = min(random.randint(SHORTEST_SPAN, LONGEST_SPAN), len(source))
        start = random.randint(0, len(source) - length)
        answer += source[start : start + length]
    return Transcript(prompt_ids=tuple(source), output_ids=tuple(answer[:max_tokens]))
