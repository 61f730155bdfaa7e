"""What the best choice between copying and drafting would bring at every step, without merging."""

from __future__ import annotations

from collections.abc import Sequence

from drafters.training.copy_labels import accepted_copy_lengths
from launch.traces import Trace


def oracle_tokens_per_pass(
    traces: Sequence[Trace], *, match_length: int, max_candidates: int = 10, max_tokens: int = 20
) -> float:
    """Per step the longer of copy and neural draft, by hindsight; greedy, so not quite the best."""
    passes = tokens = 0
    for trace in traces:
        copied = accepted_copy_lengths(
            (*trace.prompt_ids, *trace.output_ids),
            len(trace.prompt_ids),
            match_length=match_length,
            max_candidates=max_candidates,
            max_tokens=max_tokens,
        ).tolist()
        position = 1
        while position < len(trace.output_ids):
            gained = max(copied[position - 1], trace.neural_accepted(position), 0)
            position += gained + 1
            passes += 1
        tokens += len(trace.output_ids) - 1
    return tokens / max(passes, 1)
