"""The records that cross a boundary: requests in, tokens out, drafts, and what a step did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.candidates import TokenTree
from engine.copy_source import CopySource
from engine.sampling import GREEDY, SamplingParams
from engine.speculation import SpeculationConfig

if TYPE_CHECKING:
    from torch import Tensor

    from engine.outlook import Outlook

Source = Literal["copy", "neural", "merged", "plain", "prefill"]
"""What a step's rows were: copied drafts, neural drafts, a trie of both, one plain row, or prompt
rows."""

TokenSource = Literal["copy", "neural", "merged", "verifier"]
"""Who proposed an output token."""

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool = False
    sampling: SamplingParams = GREEDY
    speculation: SpeculationConfig | None = None
    """How this request speculates, where not as the engine does."""
    output_ids: tuple[int, ...] = ()
    """Output that was delivered before the request was interrupted; it goes on behind it."""

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Prompt, and output from before an interruption."""
        return self.prompt_ids + self.output_ids

    def stop_ids(self, model_stop_ids: frozenset[int]) -> frozenset[int]:
        """Tokens that end the output."""
        own = frozenset(self.sampling.stop_token_ids)
        return own if self.ignore_eos else model_stop_ids | own


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Logarithms of the raw model's probabilities at one position."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens, (id, logprob) each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """How a finished request was served."""

    queued_seconds: float
    prefill_seconds: float
    decode_seconds: float
    cached_tokens: int
    """Prompt tokens that an earlier request had left in the cache."""
    steps: dict[str, int]
    """Decode steps by source."""
    accepted: dict[str, int]
    """Accepted draft tokens by source."""
    num_draft_tokens: int
    acceptance_histogram: tuple[int, ...]
    """Drafts by the number of their tokens that were accepted, from 0 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """The output tokens that one step gave one request."""

    request_id: str
    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, where the request asked for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One per prompt token from the second on, in the first event, where they were asked for."""
    metrics: RequestMetrics | None = None
    """In the last event."""


SwitchReason = Literal[
    "always",
    "matched",
    "worth_most",
    "gate_closed",
    "no_match",
    "no_room",
    "no_reply",
    "unsure",
    "too_slow",
    "too_costly",
]
"""Why a step's source is what it is: the method knows one only; a match was found; it promised the
most tokens per time; the probe saw no copy intent; nothing matched; the answer's limit leaves no
room; the drafter did not answer, or was unsure of every token; asking it would cost more time than
it saves now; the drafted rows would.
"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The distribution that a draft token was drawn from; other tokens have probability 0."""

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSampling:
    """How to draw draft tokens for a request that samples."""

    params: SamplingParams
    """Temperature, top_k, top_p, min_p and seed count."""
    is_coupled: bool
    """Whether with the verifier's noise, or on its own with the proposals sent along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Candidate continuations of the pending token, best first; no candidates is a plain step."""

    source: Source = "plain"
    candidates: tuple[tuple[int, ...], ...] = ()
    match_length: int = 0
    """Length of the matched context suffix that the candidates continue; 0 when there is none."""
    proposals: tuple[Proposal, ...] = ()
    """What the only candidate's tokens were drawn from, where it was drawn independently."""
    probabilities: tuple[tuple[float, ...], ...] = ()
    """How likely the policy thinks that each candidate is accepted up to each of its tokens; empty:
    it has no opinion, and running counts estimate it."""
    reason: SwitchReason = "always"


def _as_it_is(draft: Draft) -> Draft:
    return draft


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuralWish:
    """A policy's wish for a neural draft of at most ``max_tokens`` tokens."""

    max_tokens: int
    reason: SwitchReason = "always"
    finish: Callable[[Draft], Draft] = _as_it_is
    """Makes the step's draft of the drafter's answer, which may be empty."""


Choice = Draft | NeuralWish


def copied(candidates: tuple[tuple[int, ...], ...], *, match_length: int) -> Draft:
    """A draft of copies from the context."""
    return Draft(source="copy", candidates=candidates, match_length=match_length, reason="matched")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTie:
    """An output token whose logit margin was so small that rounding could have flipped it."""

    position: int
    """Absolute position of the token."""
    margin: float
    """Largest minus second largest logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step did for one request: a line of ``steps.jsonl``."""

    request: str
    step: int
    source: Source
    drafted: int
    """Draft tokens on the longest proposed candidate."""
    rows: int
    """Rows verified for this request: the pending token's row included, padding not."""
    accepted: int
    output: int
    draft_ms: float
    verify_ms: float
    drafter_calls: int = 0
    """Times that the neural drafter was asked: never where the step copies."""
    probe_score: float | None = None
    match_length: int = 0
    reason: SwitchReason = "always"
    """Why the source is what it is."""
    near_ties: tuple[NearTie, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStep:
    """What a decode step tells the request's chooser."""

    record: StepRecord
    tree: TokenTree
    """The rows that were verified."""
    next_ids: Sequence[int]
    """The verifier's arg-max behind every node of the tree."""
    output_ids: tuple[int, ...] = ()
    """What became output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Everything a step tells the outside: tokens for requests, and records for metrics."""

    events: tuple[TokenEvent, ...] = ()
    records: tuple[StepRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """One finished answer with its step records."""

    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    finish_reason: FinishReason
    records: tuple[StepRecord, ...]
    prefill_seconds: float
    decode_seconds: float
    prefill_cpu_seconds: float = 0.0
    decode_cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIndexShape:
    """What a policy needs the copy index to hold."""

    match_lengths: tuple[int, ...]
    max_tokens: int
    min_match: int = 0
    """Shortest match that ``CopySource.matches`` lists; 0: it is not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """What a policy may look at when it drafts for one sequence."""

    request_id: str
    token_ids: Sequence[int]
    """Prompt and output so far; the last one is the pending token."""
    copies: CopySource
    max_draft_tokens: int
    """Draft tokens that can still become output: bounded by max_tokens and max_model_len."""
    probe_score: float | None
    """Copy intent read at row NA: the row whose logits emitted the pending token."""
    features: Tensor | None = None
    """[len(token_ids) - 1, F]: what the drafter's projection reads from the verifier's row of every
    committed position; the last row is row NA. None when nothing is read."""
    sampling: DraftSampling | None = None
    """How a neural drafter should draw its tokens; None: greedily."""
    outlook: Outlook | None = None
    """What the coming step may cost; a drafter is not told."""
