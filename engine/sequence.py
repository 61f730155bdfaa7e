"""One request's state on the coordinator, from its admission to its end or interruption."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.block import SequenceRows
from engine.candidates import TokenTree, chain
from engine.copy_source import CopySource
from engine.drafting import Drafting
from engine.features import FeatureHistory
from engine.interfaces import Chooser
from engine.outlook import Outlook
from engine.records import Draft, DraftSampling, FinishReason, Request, SequenceView, TokenLogprobs
from engine.request_stats import RequestStats
from engine.slots import Prefix
from engine.token_sampler import TokenSampler

MAX_SCORED_ROWS = 64
"""Prompt rows of one step whose whole logits are wanted: they are a vocabulary wide each."""


@dataclass(slots=True, kw_only=True)
class Sequence:
    """Tokens, committed length and draft in flight of one request.

    While decoding, ``token_ids[-1]`` is the pending token and ``committed_length == len(token_ids)
    - 1``.
    """

    request: Request
    slot: int
    copies: CopySource
    max_model_len: int
    drafting: Drafting
    stats: RequestStats
    sampler: TokenSampler | None = None
    """Chooses the tokens where the verifier's arg-max alone does not do."""
    token_ids: list[int] = field(default_factory=list)
    committed_length: int = 0
    probe_score: float | None = None
    features: FeatureHistory = field(default_factory=FeatureHistory)
    draft: Draft = field(default_factory=Draft)
    neural_asked: int = 0
    """Tokens that the drafter was asked for in this step at most; 0: it was not asked."""
    neural_tokens: tuple[int, ...] = ()
    """Its first candidate."""
    draft_ms: float = 0.0
    drafter_calls: int = 0
    finish_reason: FinishReason | None = None
    num_steps: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    chooser: Chooser = field(init=False)

    def __post_init__(self) -> None:
        self.chooser = self.drafting.policy.begin()
        known = self.request.known_ids
        self.token_ids.extend(known)
        self.copies.append(known)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens that are run before decoding.

        The prompt, or all of an interrupted request's tokens but the last, which is pending.
        """
        output = len(self.request.output_ids)
        return len(self.request.prompt_ids) + max(0, output - 1)

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens from before decoding are still to be run."""
        return self.committed_length < self.num_prefill_tokens

    def gives_token(self, length: int) -> bool:
        """Whether prefilling up to ``length`` tokens ends with an output token."""
        return length == self.num_prefill_tokens and not self.request.output_ids

    @property
    def prefix(self) -> Prefix:
        """What its slot holds: this sequence's committed tokens."""
        return Prefix(self.slot, self.token_ids[: self.committed_length], self.features)

    @property
    def num_output_tokens(self) -> int:
        """Tokens produced so far."""
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def remaining_tokens(self) -> int:
        """Output tokens that ``max_tokens`` and ``max_model_len`` still allow."""
        budget = self.request.max_tokens - self.num_output_tokens
        return min(budget, self.max_model_len - len(self.token_ids))

    def view(self, outlook: Outlook | None = None) -> SequenceView:
        """What a policy sees; one of the remaining tokens is the verifier's own."""
        return SequenceView(
            request_id=self.request.request_id,
            token_ids=self.token_ids,
            copies=self.copies,
            max_draft_tokens=self.remaining_tokens - 1,
            probe_score=self.probe_score,
            features=self.features.rows,
            sampling=self._draft_sampling,
            outlook=outlook,
        )

    @property
    def _draft_sampling(self) -> DraftSampling | None:
        method, params = self.drafting.speculation.draft_sample_method, self.request.sampling
        if params.temperature == 0 or method == "greedy":
            return None
        return DraftSampling(params=params, is_coupled=method == "coupled")

    def prompt_chunk(self, max_rows: int) -> SequenceRows:
        """The next prompt rows, at most ``max_rows``."""
        scores_prompt = self.request.sampling.prompt_logprobs is not None
        start = self.committed_length
        rows = min(max_rows, MAX_SCORED_ROWS) if scores_prompt else max_rows
        end = min(start + rows, self.num_prefill_tokens)
        tree = chain(self.token_ids[start:end])
        return SequenceRows(
            self.slot,
            start,
            tree,
            wants_all=scores_prompt,
            wants_logits=scores_prompt or self.wants_logits,
        )

    def decode_rows(self, tree: TokenTree) -> SequenceRows:
        """The pending token and its draft."""
        return SequenceRows(
            self.slot,
            self.committed_length,
            tree,
            wants_all=True,
            wants_logits=self.wants_logits,
        )

    @property
    def wants_logits(self) -> bool:
        """Whether output tokens need more than the verifier's arg-max."""
        return self.request.sampling.needs_logits
