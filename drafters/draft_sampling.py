"""How a chain's next token is drafted: the likeliest, or drawn for a request that samples.

A coupled drafter races its own distribution with the noise that will choose the verifier's token
(Daliri et al. 2024, arXiv 2408.07978), so nothing but the token needs to be sent. A probabilistic
one draws on its own from its likeliest tokens and sends these with their probabilities, because the
rejection rule needs the distribution that the token was really drawn from.

Legend: V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.noise import draft_noise, race_noise
from engine.records import DraftSampling, Proposal
from engine.sampling import distribution
from engine.verification import race

PROPOSED_TOKENS = 64
"""A probabilistic drafter draws from this many tokens."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One drafted token."""

    token: int
    probability: float
    """The drafter's own, at temperature 1 when it drafts greedily; 1 where nobody asks."""
    proposal: Proposal | None = None
    """What it was drawn from, where the verifier must know."""


NextToken = Callable[[Decoder, Tensor, int], DraftToken]
"""A state [1, H] and the absolute position of the token to be drafted behind it."""


@torch.inference_mode()
def likeliest(model: Decoder, hidden_1H: Tensor, position: int) -> DraftToken:
    """The arg-max; its probability is not computed."""
    del position
    return DraftToken(int(model.top(hidden_1H).ids), 1.0)


@torch.inference_mode()
def sure_likeliest(model: Decoder, hidden_1H: Tensor, position: int) -> DraftToken:
    """The arg-max with its probability at temperature 1."""
    del position
    probability, token = _logits(model, hidden_1H).softmax(-1).max(-1)
    return DraftToken(int(token), float(probability))


@dataclass(frozen=True, slots=True)
class CoupledToken:
    """A ``NextToken`` that races with the verifier's noise."""

    sampling: DraftSampling

    @torch.inference_mode()
    def __call__(self, model: Decoder, hidden_1H: Tensor, position: int) -> DraftToken:
        """The token that the verifier would choose if its distribution were this one."""
        probabilities_V = distribution(_logits(model, hidden_1H), self.sampling.params)
        noise_V = race_noise(self.sampling.params.seed, position, probabilities_V.numel())
        token = int(race(probabilities_V, noise_V))
        return DraftToken(token, float(probabilities_V[token]))


@dataclass(frozen=True, slots=True)
class ProposedToken:
    """A ``NextToken`` that draws from the likeliest tokens and says from which."""

    sampling: DraftSampling

    @torch.inference_mode()
    def __call__(self, model: Decoder, hidden_1H: Tensor, position: int) -> DraftToken:
        """A token and the truncated distribution that it was drawn from."""
        probabilities_V = distribution(_logits(model, hidden_1H), self.sampling.params)
        top = probabilities_V.topk(min(PROPOSED_TOKENS, probabilities_V.numel()))
        kept = top.values / top.values.sum()
        noise = draft_noise(self.sampling.params.seed, position, kept.numel())
        index = int(race(kept, noise))
        proposal = Proposal(tuple(top.indices.tolist()), tuple(kept.tolist()))
        return DraftToken(proposal.token_ids[index], float(kept[index]), proposal)


def _logits(model: Decoder, hidden_1H: Tensor) -> Tensor:
    """[V], from the faster kernels where there are some."""
    logits_1V: Tensor = model.top_and_logits(hidden_1H, [0])[1]
    return logits_1V[0]


def next_token_of(sampling: DraftSampling | None, *, min_probability: float) -> NextToken:
    """How to draft for a request; None drafts greedily."""
    if sampling is None:
        return likeliest if min_probability == 0 else sure_likeliest
    return CoupledToken(sampling) if sampling.is_coupled else ProposedToken(sampling)
