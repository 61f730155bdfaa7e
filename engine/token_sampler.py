"""One request's way from logits to its next token, with all that it remembers of its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.noise import acceptance_noise, race_noise
from engine.records import Proposal, TokenLogprobs
from engine.sampling import SamplingParams, bias, distribution, forbid, penalise
from engine.verification import accept_or_resample, race


class TokenGrammar(Protocol):
    """What the output must match; moves on with the tokens that became output."""

    def mask(self, logits_V: Tensor) -> Tensor:
        """The logits with every token that cannot follow made impossible."""
        ...

    def accept(self, token: int) -> None:
        """The token became output."""
        ...

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, could follow."""
        ...


@dataclass(frozen=True, slots=True)
class Proposed:
    """A draft token and what it was drawn from."""

    token: int
    proposal: Proposal


class TokenSampler:
    """Chooses one request's tokens in order; every chosen token is output."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int] = (),
        stop_ids: Collection[int],
        grammar: TokenGrammar | None = None,
    ) -> None:
        """``output_ids``: what was chosen before an interruption."""
        self._params, self._stop_ids, self._grammar = params, stop_ids, grammar
        self._output: list[int] = []
        self._counts: Counter[int] = Counter()
        self._seen = set(prompt_ids)
        self._num_prompt_tokens = len(prompt_ids)
        for token in output_ids:
            self.accept(token)

    @property
    def position(self) -> int:
        """Absolute position of the token that is chosen next."""
        return self._num_prompt_tokens + len(self._output)

    def next_token(self, logits_V: Tensor, proposed: Proposed | None = None) -> int:
        """Choose the token that follows the output so far, and take it in.

        A token that was drawn independently of the noise (``proposed``) goes by the rejection rule.
        """
        token = self._choose(self.shaped(logits_V), proposed)
        self.accept(token)
        return token

    def shaped(self, logits_V: Tensor) -> Tensor:
        """Penalties, bias and everything that is forbidden now."""
        params = self._params
        if self._grammar is not None:
            logits_V = self._grammar.mask(logits_V)
        if forbidden := self._forbidden():
            allowed_V = forbid(logits_V, forbidden)
            # A grammar that ends here leaves nothing but the stop token.
            logits_V = allowed_V if allowed_V.isfinite().any() else logits_V
        if params.logit_bias:
            logits_V = bias(logits_V, params.logit_bias)
        return penalise(logits_V, params, self._seen, self._counts)

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many draft tokens, from the first on, the grammar could still accept."""
        if self._grammar is None:
            return len(token_ids)
        return self._grammar.count_valid(token_ids)

    def _choose(self, shaped_V: Tensor, proposed: Proposed | None) -> int:
        if self._params.temperature == 0:
            return int(shaped_V.argmax())
        seed, position = self._params.seed, self.position
        probabilities_V = distribution(shaped_V, self._params)
        noise_V = race_noise(seed, position, probabilities_V.numel())
        if proposed is None:
            return int(race(probabilities_V, noise_V))
        uniform = torch.tensor(acceptance_noise(seed, position), dtype=torch.float64)
        token = torch.tensor(proposed.token)
        proposal_V = _dense(proposed.proposal, like=probabilities_V)
        _, chosen = accept_or_resample(probabilities_V, proposal_V, token, uniform, noise_V)
        return int(chosen)

    def accept(self, token: int) -> None:
        """Take in a token that became output."""
        self._output.append(token)
        self._counts[token] += 1
        self._seen.add(token)
        if self._grammar is not None:
            self._grammar.accept(token)

    def _forbidden(self) -> set[int]:
        """Stop tokens that would come too early, and the last tokens of bad words."""
        found = set(self._stop_ids) if len(self._output) < self._params.min_tokens else set()
        for word in self._params.bad_words:
            start = len(word) - 1
            if start == 0 or tuple(self._output[-start:]) == word[:-1]:
                found.add(word[-1])
        return found


def _dense(proposal: Proposal, *, like: Tensor) -> Tensor:
    """[V]; a token beyond the verifier's vocabulary could not be proposed."""
    dense_V = torch.zeros_like(like)
    dense_V[list(proposal.token_ids)] = torch.tensor(proposal.probabilities, dtype=like.dtype)
    return dense_V


def token_logprobs(logits_V: Tensor, token: int, num_top: int) -> TokenLogprobs:
    """Of a row's raw logits: the token's own, and those of the likeliest tokens."""
    logprobs_V = logits_V.log_softmax(-1)
    own = logprobs_V[token]
    top = logprobs_V.topk(num_top)
    return TokenLogprobs(
        token_id=token,
        logprob=float(own),
        rank=1 + int(torch.count_nonzero(logprobs_V > own)),
        top=tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)),
    )
