"""Answers of the verifier and its residual states on them: what the probe learns from.

Answers are generated greedily by the engine with prompt look-up, which is lossless and fast; the
states come from one teacher-forced pass over prompt and answer.

**Rows and labels.** Row i is the row whose *input* is token i: its state has seen tokens 0..i and
its logits emit token i + 1. When the gate is asked, the newest row that has been through the
verifier is row NA, i = index of the last accepted token, and the pending token i + 1 is already
known. Two alignments of state and label follow:

* ``label_shift`` 0 pairs row i with Y_i: "is the token that I just read part of a repeated span",
  which is the paper's literal pairing of H_i with Y_i. At run time it speaks of the last accepted
  token, one before the pending one.
* ``label_shift`` 1 pairs row i with Y_{i+1}: "is the token that I am about to emit part of one". At
  run time it speaks of the pending token, the one at which the copied κ-gram ends.

They differ at the edges of spans only. Both are trained and validation F1 chooses. To serve both,
rows from the last prompt token to the last generated one are captured; where a shift has no label
(Y of a prompt token, Y beyond the end) it is ``NO_LABEL``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.training.answers import AnswerFile
from drafters.training.copy_labels import accepted_copy_lengths, copy_labels
from drafters.training.whole_sequences import WholeSequences
from engine.engine import SpeculativeEngine
from engine.interfaces import Site
from engine.models.decoder import Decoder
from engine.records import Request

NO_LABEL = -1
"""In ``CapturedStates.labels``: the shift has no label for this row."""

Point = tuple[int, Site]
"""A global layer index and a site in it."""

Progress = Callable[[int], None]
"""Told how many more prompts are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A prompt and the verifier's greedy answer."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt_ids + self.output_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedStates:
    """Residual states of n rows at P points of the verifier, with their labels."""

    points: tuple[Point, ...]
    states: Tensor
    """[P, n, H] bfloat16: half the memory, and no overflow on massive activations."""
    transcripts: Tensor
    """[n] int64: index of the row's transcript."""
    labels: tuple[Tensor, Tensor]
    """[n] int8 for label_shift 0 and 1: 1 in a repeated span, 0 not, ``NO_LABEL`` undefined."""
    gains: Tensor
    """[n] int64: tokens that copying behind the pending token would have gained; -1: no match."""


def generate_transcripts(
    engine: SpeculativeEngine,
    prompts: Sequence[tuple[int, ...]],
    answers: AnswerFile,
    *,
    max_tokens: int,
    progress: Progress,
) -> list[Transcript]:
    """Greedy answers to all prompts, as many at once as the engine has slots.

    Prompts with an answer in ``answers`` are not asked again; new answers are added to it. Raises
    ``ValueError`` when a prompt does not fit the engine.
    """
    asked = [index for index, prompt_ids in enumerate(prompts) if answers.get(prompt_ids) is None]
    progress(len(prompts) - len(asked))
    for index in asked:
        engine.add(Request(request_id=str(index), prompt_ids=prompts[index], max_tokens=max_tokens))
    outputs: dict[str, list[int]] = {str(index): [] for index in asked}
    while engine.has_work:
        for event in engine.step().events:
            outputs[event.request_id] += event.token_ids
            if event.finish_reason is not None:
                answers.add(prompts[int(event.request_id)], outputs[event.request_id])
                progress(1)
    return [
        Transcript(prompt_ids=prompt_ids, output_ids=answers.get(prompt_ids) or ())
        for prompt_ids in prompts
    ]


def capture_states(
    model: Decoder,
    transcripts: Sequence[Transcript],
    points: Sequence[Point],
    *,
    rows_per_transcript: int,
    generator: torch.Generator,
    progress: Progress,
) -> CapturedStates:
    """States of at most ``rows_per_transcript`` random rows of each answer, in order."""
    chosen = [_choose_rows(entry, rows_per_transcript, generator) for entry in transcripts]
    sizes = [len(rows) for rows in chosen]
    states = torch.empty(len(points), sum(sizes), model.config.hidden_size, dtype=torch.bfloat16)
    targets = torch.split(states, sizes, dim=1)
    for entry, rows, target in zip(transcripts, chosen, targets, strict=True):
        for place, hidden_RH in _observe(model, entry.token_ids, points):
            target[place] = hidden_RH[rows]
        progress(1)
    return CapturedStates(
        points=tuple(points),
        states=states,
        transcripts=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        labels=(_gather(transcripts, chosen, _labels(0)), _gather(transcripts, chosen, _labels(1))),
        gains=_gather(transcripts, chosen, _gains),
    )


@torch.inference_mode()
def _observe(
    model: Decoder, token_ids: Sequence[int], points: Sequence[Point]
) -> Iterator[tuple[int, Tensor]]:
    """(index into ``points``, hidden [R, H]) up to the last layer asked for."""
    assert model.embed is not None, "capture needs the whole model"
    places = {point: place for place, point in enumerate(points)}
    last_layer = max(layer for layer, _ in points)
    context = WholeSequences(1, len(token_ids))
    hidden_RH = model.embed(torch.tensor(token_ids))
    for layer in model.layers.values():
        hidden_RH = layer(hidden_RH, context)
        for point, observed_RH in context.observed.items():
            if point in places:
                yield places[point], observed_RH
        context.observed.clear()
        if layer.index == last_layer:
            return


def _choose_rows(entry: Transcript, limit: int, generator: torch.Generator) -> Tensor:
    """Sorted row indices: from the last prompt token to the last generated one, or a part."""
    first, count = len(entry.prompt_ids) - 1, len(entry.output_ids) + 1
    order = torch.randperm(count, generator=generator)[:limit]
    return first + order.sort().values


def _gather(
    transcripts: Sequence[Transcript],
    chosen: Sequence[Tensor],
    per_token: Callable[[Transcript], Tensor],
) -> Tensor:
    """A per-token quantity of whole transcripts at the chosen rows."""
    return torch.cat(
        [per_token(entry)[rows] for entry, rows in zip(transcripts, chosen, strict=True)]
    )


def _labels(shift: int) -> Callable[[Transcript], Tensor]:
    """Per token i of prompt and answer: the label of token i + shift, int8."""

    def per_token(entry: Transcript) -> Tensor:
        known = copy_labels(entry.token_ids, len(entry.prompt_ids)).to(torch.int8)
        labels = torch.full((len(entry.token_ids),), NO_LABEL, dtype=torch.int8)
        first = len(entry.prompt_ids) - shift
        labels[first : first + len(known)] = known
        return labels

    return per_token


def _gains(entry: Transcript) -> Tensor:
    """Per token i: tokens gained by copying behind the pending token i + 1; -1: no match."""
    known = accepted_copy_lengths(entry.token_ids, len(entry.prompt_ids))
    gains = torch.full((len(entry.token_ids),), -1, dtype=torch.int64)
    gains[len(entry.prompt_ids) - 1 : -1] = known
    return gains
