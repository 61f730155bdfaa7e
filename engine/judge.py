"""From arg-max ids to accepted tokens: verify, cut at stop and limits, advance, record."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

from torch import Tensor

from engine.block import Block, SequenceRows
from engine.candidates import TokenTree
from engine.interfaces import TopTokens
from engine.kv_cache import Commit
from engine.records import Draft, NearTie, StepRecord, TokenEvent, TokenLogprobs, TokenSource
from engine.sequence import Sequence
from engine.token_sampler import Proposed, token_logprobs
from engine.verification import NextToken, Verification, cut_output, verify


@dataclass(frozen=True, slots=True)
class RowResults:
    """What the verifier said about one sequence's rows."""

    next_ids: Sequence_[int]
    """Arg-max per row (one entry, the last row's, for a prompt chunk)."""
    margins: Sequence_[float]
    """Largest minus second largest logit, aligned with ``next_ids``."""
    probe_scores: Sequence_[Sequence_[float]]
    """Per probe, its score of every row."""
    first_row: int
    features: Tensor | None = None
    """[rows, F]: drafter features of every row."""
    logits: Tensor | None = None
    """[rows, V], aligned with ``next_ids``, where the sequence's tokens need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What a pass found out beside arg-max ids."""

    probe_scores: tuple[list[float], ...] = ()
    """Per probe, its score of every row."""
    features: Tensor | None = None
    """[R, F]: drafter features of every row."""
    logits: Tensor | None = None
    """[S, V]: of the block's ``sampled`` rows."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """What the verifier said about a whole block."""

    block: Block
    next_ids: list[int]
    margins: list[float]
    readings: Readings

    @classmethod
    def from_top(cls, block: Block, top: TopTokens, readings: Readings) -> BlockResult:
        """Read the tensors once; padding rows have no entry in ``logit_rows``."""
        margins = (top.values - top.runner_up).tolist()
        return cls(block, top.ids.tolist(), margins, readings)

    def of_sequence(self, index: int) -> RowResults:
        """The part that belongs to the block's ``index``-th sequence."""
        rows, row = self.block.sequences[index], self.block.row_starts[index]
        count, first = len(rows.tree.token_ids), self.block.logit_starts[index]
        wanted = slice(first, first + rows.num_wanted)
        scores, features = self.readings.probe_scores, self.readings.features
        return RowResults(
            next_ids=self.next_ids[wanted],
            margins=self.margins[wanted],
            probe_scores=[one[row : row + count] for one in scores],
            first_row=row,
            features=None if features is None else features[row : row + count],
            logits=self._logits_of(index),
        )

    def _logits_of(self, index: int) -> Tensor | None:
        rows, logits = self.block.sequences[index], self.readings.logits
        if logits is None or not rows.wants_logits:
            return None
        before = self.block.sequences[:index]
        first = sum(other.num_wanted for other in before if other.wants_logits)
        return logits[first : first + rows.num_wanted]


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
    verification = _verify(sequence, rows, results, stop_ids)
    output, stopped = cut_output(
        verification.output_tokens, stop_ids=stop_ids, max_tokens=sequence.remaining_tokens
    )
    emitting = (rows.num_wanted - 1,) if prefilling else verification.path
    logprobs = _output_logprobs(sequence, results, emitting, output)
    sources = _sources(len(output), verification, _proposer(draft))
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
        reason=draft.reason,
        near_ties=_near_ties(results, emitting[: len(output)], first_position, near_tie_margin),
    )
    committed = tuple(results.first_row + node for node in verification.path)
    commit = Commit(rows.slot, rows.committed_length, committed)
    return Judgement(_event(sequence, output, sources, logprobs), record, commit)


def _verify(
    sequence: Sequence, rows: SequenceRows, results: RowResults, stop_ids: Collection[int]
) -> Verification:
    """A prompt chunk is accepted whole; only the prompt's last row has an output token."""
    next_token = _next_token(sequence, rows.tree, results)
    if not sequence.is_prefilling:
        return verify(rows.tree, next_token, stop_ids=stop_ids)
    _score_prompt(sequence, rows, results)
    path = tuple(range(len(rows.tree.token_ids)))
    gives_token = sequence.gives_token(rows.committed_length + len(path))
    return Verification(path, (next_token(rows.num_wanted - 1),) if gives_token else ())


def _next_token(sequence: Sequence, tree: TokenTree, results: RowResults) -> NextToken:
    """The verifier's arg-max, or what the request's sampler makes of a row's logits."""
    sampler, logits = sequence.sampler, results.logits
    if sampler is None:
        return results.next_ids.__getitem__
    assert logits is not None, "a sampled sequence's rows want logits"
    proposals = () if sequence.is_prefilling else sequence.draft.proposals
    proposed = [
        Proposed(token, proposal)
        for token, proposal in zip(tree.token_ids[1:], proposals, strict=False)
    ]
    return lambda node: sampler.next_token(
        logits[node], proposed[node] if node < len(proposed) else None
    )


def _score_prompt(sequence: Sequence, rows: SequenceRows, results: RowResults) -> None:
    """Logprobs of the prompt tokens that follow this chunk's rows."""
    wanted = sequence.request.sampling.prompt_logprobs
    if wanted is None:
        return
    assert results.logits is not None, "a scored prompt's rows want logits"
    first = rows.committed_length + 1
    following = sequence.request.prompt_ids[first : first + len(rows.tree.token_ids)]
    sequence.prompt_logprobs += [
        token_logprobs(logits_V, token, wanted)
        for logits_V, token in zip(results.logits, following, strict=False)
    ]


def _output_logprobs(
    sequence: Sequence,
    results: RowResults,
    emitting: tuple[int, ...],
    output: tuple[int, ...],
) -> tuple[TokenLogprobs, ...]:
    """Of the output tokens; ``emitting`` are the nodes whose logits gave them."""
    wanted = sequence.request.sampling.logprobs
    if wanted is None or not output:
        return ()
    assert results.logits is not None, "the rows of a request with logprobs want logits"
    return tuple(
        token_logprobs(results.logits[node], token, wanted)
        for node, token in zip(emitting, output, strict=False)
    )


def _proposer(draft: Draft) -> TokenSource:
    """Of the accepted tokens; a plain step has none."""
    match draft.source:
        case "copy" | "neural" | "merged" as source:
            return source
    return "verifier"


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
    if results.probe_scores:
        scores = results.probe_scores[sequence.drafting.probe]
        sequence.probe_score = scores[verification.path[-1]]
    if results.features is not None:
        sequence.features.append(results.features[list(verification.path)])


def _finish(sequence: Sequence, *, stopped: bool) -> None:
    if stopped:
        sequence.finish_reason = "stop"
    elif not sequence.is_prefilling and sequence.remaining_tokens <= 0:
        sequence.finish_reason = "length"


def _event(
    sequence: Sequence,
    output: tuple[int, ...],
    sources: tuple[TokenSource, ...],
    logprobs: tuple[TokenLogprobs, ...],
) -> TokenEvent | None:
    if not output:
        return None
    is_first = sequence.num_output_tokens == len(output)
    return TokenEvent(
        request_id=sequence.request.request_id,
        token_ids=output,
        sources=sources,
        finish_reason=sequence.finish_reason,
        logprobs=logprobs,
        prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
    )


def _near_ties(
    results: RowResults,
    emitting: tuple[int, ...],
    first_position: int,
    near_tie_margin: float,
) -> tuple[NearTie, ...]:
    """Output tokens whose margin is within the tolerance."""
    return tuple(
        NearTie(position=first_position + index, margin=results.margins[node])
        for index, node in enumerate(emitting)
        if results.margins[node] <= near_tie_margin
    )
