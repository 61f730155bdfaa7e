"""From arg-max ids to accepted tokens: verify, cut at stop and limits, advance, record."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

from torch import Tensor

from engine.block import Block, SequenceRows
from engine.interfaces import TopTokens
from engine.kv_cache import Commit
from engine.records import NearTie, StepRecord, TokenEvent, TokenSource
from engine.sequence import Sequence
from engine.verification import Verification, cut_output, verify_greedy


@dataclass(frozen=True, slots=True)
class RowResults:
    """What the verifier said about one sequence's rows."""

    next_ids: Sequence_[int]
    """Arg-max per row (one entry, the last row's, for a prompt chunk)."""
    margins: Sequence_[float]
    """Largest minus second largest logit, aligned with ``next_ids``."""
    probe_scores: Sequence_[float] | None
    """Copy intent of every row."""
    first_row: int
    features: Tensor | None = None
    """[rows, F]: drafter features of every row."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """What the verifier said about a whole block."""

    block: Block
    next_ids: list[int]
    margins: list[float]
    probe_scores: list[float] | None
    features: Tensor | None = None
    """[R, F]: drafter features of every row."""

    @classmethod
    def from_top(
        cls,
        block: Block,
        top: TopTokens,
        probe_scores: list[float] | None,
        features: Tensor | None = None,
    ) -> BlockResult:
        """Read the tensors once; padding rows have no entry in ``logit_rows``."""
        margins = (top.values - top.runner_up).tolist()
        return cls(block, top.ids.tolist(), margins, probe_scores, features)

    def of_sequence(self, index: int) -> RowResults:
        """The part that belongs to the block's ``index``-th sequence."""
        rows, row = self.block.sequences[index], self.block.row_starts[index]
        count, first = len(rows.tree.token_ids), self.block.logit_starts[index]
        wanted = slice(first, first + (count if rows.wants_all else 1))
        scores = self.probe_scores[row : row + count] if self.probe_scores is not None else None
        features = self.features[row : row + count] if self.features is not None else None
        return RowResults(self.next_ids[wanted], self.margins[wanted], scores, row, features)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Consequences of one sequence's rows."""

    event: TokenEvent | None
    record: StepRecord
    commit: Commit


def judge(
    sequence: Sequence,
    rows: SequenceRows,
    results: RowResults,
    *,
    stop_ids: Collection[int],
    near_tie_margin: float,
    verify_ms: float,
) -> Judgement:
    """Advance ``sequence`` in place by what its rows brought."""
    prefilling, score, draft = sequence.is_prefilling, sequence.probe_score, sequence.draft
    verification = _verify(sequence, rows, results)
    stops = () if sequence.request.ignore_eos else stop_ids
    output, stopped = cut_output(
        verification.output_tokens, stop_ids=stops, max_tokens=sequence.remaining_tokens
    )
    sources = _sources(len(output), verification, "neural" if draft.source == "neural" else "copy")
    first_position = len(sequence.token_ids)
    _advance(sequence, verification, results, output)
    _finish(sequence, stopped=stopped)
    record = StepRecord(
        request=sequence.request.request_id,
        step=sequence.num_steps,
        source="prefill" if prefilling else draft.source,
        drafted=0 if prefilling else max(rows.tree.depths),
        rows=len(rows.tree.token_ids),
        accepted=0 if prefilling else min(len(verification.path) - 1, len(output)),
        output=len(output),
        draft_ms=0.0 if prefilling else sequence.draft_ms,
        drafter_calls=0 if prefilling else sequence.drafter_calls,
        verify_ms=verify_ms,
        probe_score=score,
        match_length=0 if prefilling else draft.match_length,
        near_ties=_near_ties(verification, results, len(output), first_position, near_tie_margin),
    )
    committed = tuple(results.first_row + node for node in verification.path)
    commit = Commit(rows.slot, rows.committed_length, committed)
    return Judgement(_event(sequence, output, sources), record, commit)


def _verify(sequence: Sequence, rows: SequenceRows, results: RowResults) -> Verification:
    """A prompt chunk is accepted whole; only the prompt's last row has an output token."""
    if not sequence.is_prefilling:
        return verify_greedy(rows.tree, results.next_ids)
    path = tuple(range(len(rows.tree.token_ids)))
    ends_prompt = rows.committed_length + len(path) == len(sequence.request.prompt_ids)
    return Verification(path, tuple(results.next_ids) if ends_prompt else ())


def _sources(
    num_output: int, verification: Verification, drafted: TokenSource
) -> tuple[TokenSource, ...]:
    """Who proposed each output token; the last of an uncut block is the verifier's own."""
    own = len(verification.output_tokens) - 1
    return tuple("verifier" if index == own else drafted for index in range(num_output))


def _advance(
    sequence: Sequence,
    verification: Verification,
    results: RowResults,
    output: tuple[int, ...],
) -> None:
    """Commit lengths and tokens; the probe counts at row NA, the last accepted row."""
    sequence.committed_length += len(verification.path)
    sequence.token_ids.extend(output)
    sequence.copies.append(output)
    sequence.num_steps += 1
    if results.probe_scores is not None:
        sequence.probe_score = results.probe_scores[verification.path[-1]]
    if results.features is not None:
        sequence.features.append(results.features[list(verification.path)])


def _finish(sequence: Sequence, *, stopped: bool) -> None:
    if stopped:
        sequence.finish_reason = "stop"
    elif not sequence.is_prefilling and sequence.remaining_tokens <= 0:
        sequence.finish_reason = "length"


def _event(
    sequence: Sequence, output: tuple[int, ...], sources: tuple[TokenSource, ...]
) -> TokenEvent | None:
    if not output:
        return None
    return TokenEvent(
        request_id=sequence.request.request_id,
        token_ids=output,
        sources=sources,
        finish_reason=sequence.finish_reason,
    )


def _near_ties(
    verification: Verification,
    results: RowResults,
    num_output: int,
    first_position: int,
    near_tie_margin: float,
) -> tuple[NearTie, ...]:
    """Output tokens whose margin is within the tolerance."""
    if not verification.output_tokens:
        return ()
    prompt_chunk = len(results.margins) == 1
    nodes = (0,) if prompt_chunk else verification.path
    return tuple(
        NearTie(position=first_position + index, margin=results.margins[node])
        for index, node in enumerate(nodes[:num_output])
        if results.margins[node] <= near_tie_margin
    )
