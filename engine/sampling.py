"""From logits to the distribution that a request asked for: pure functions of one row.

The order is vLLM's: grammar and forbidden tokens, bias, penalties, temperature, min_p, top_k,
top_p. Every function returns a new tensor; shared rows must keep their values (an in-place change
biased later draws in vllm-ascend#2881).

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOGPROBS = 20
"""Alternatives per position that may be asked for, as in OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen; the defaults are plain greedy decoding."""

    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output (CTRL, Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Over the output, as is the next."""
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    min_tokens: int = 0
    """Output tokens before a stop token may come."""
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's own."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not come up in the output."""
    grammar: str | None = None
    """What the output must match, in llguidance's notation."""
    seed: int = 0
    """Of the noise that chooses tokens: the same seed gives the same tokens."""
    logprobs: int | None = None
    """Alternatives reported per output token; 0 reports the token itself."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _check("top_k", self.top_k, 0, 2**31)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_below=True)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("min_tokens", self.min_tokens, 0, 2**31)
        _check("seed", self.seed, -(2**63), 2**63 - 1)
        _check("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        _check("prompt_logprobs", self.prompt_logprobs or 0, 0, MAX_LOGPROBS)

    @property
    def is_shaped(self) -> bool:
        """Whether another token than the arg-max of the raw logits may be chosen."""
        return self.temperature > 0 or self.changes_logits

    @property
    def changes_logits(self) -> bool:
        """Whether the logits themselves are changed, whatever the temperature."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.min_tokens
            or self.bad_words
            or self.grammar is not None
        )

    @property
    def needs_logits(self) -> bool:
        """Whether the verifier's arg-max alone does not do."""
        return self.is_shaped or self.logprobs is not None


def _check(name: str, value: float, low: float, high: float, *, open_below: bool = False) -> None:
    if not (low < value if open_below else low <= value) or not value <= high:
        least = f"above {low:g}" if open_below else f"{low:g} or more"
        raise ValueError(f"{name} is {value}; it must be {least} and at most {high:g}")


GREEDY = SamplingParams()


def forbid(logits_V: Tensor, token_ids: Collection[int]) -> Tensor:
    """The logits with some tokens made impossible."""
    changed_V = logits_V.clone()
    changed_V[_index(token_ids, logits_V.numel())] = -torch.inf
    return changed_V


def bias(logits_V: Tensor, biases: Collection[tuple[int, float]]) -> Tensor:
    """The logits with a number added to some of them."""
    changed_V = logits_V.clone()
    for token, value in biases:
        changed_V[token] += value
    return changed_V


def penalise(
    logits_V: Tensor, params: SamplingParams, seen: Collection[int], counts: Mapping[int, int]
) -> Tensor:
    """Penalties for tokens ``seen`` in prompt or output, and for output tokens by their count."""
    changed_V = logits_V.clone()
    if params.repetition_penalty != 1.0:
        index = _index(seen, logits_V.numel())
        chosen = changed_V[index]
        factor = params.repetition_penalty
        changed_V[index] = torch.where(chosen > 0, chosen / factor, chosen * factor)
    if params.frequency_penalty or params.presence_penalty:
        index = torch.tensor(list(counts), dtype=torch.int64)
        times = torch.tensor(list(counts.values()), dtype=changed_V.dtype)
        changed_V[index] -= params.frequency_penalty * times + params.presence_penalty
    return changed_V


def distribution(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """[V] float64 probabilities at a temperature above 0, after min_p, top_k and top_p."""
    probabilities_V = (logits_V.double() / params.temperature).softmax(-1)
    if params.min_p > 0:
        least = params.min_p * probabilities_V.max()
        probabilities_V = probabilities_V.masked_fill(probabilities_V < least, 0.0)
    if 0 < params.top_k < probabilities_V.numel():
        probabilities_V = _keep_top_k(probabilities_V, params.top_k)
    if params.top_p < 1:
        probabilities_V = _keep_top_p(probabilities_V, params.top_p)
    return probabilities_V / probabilities_V.sum()


def _keep_top_k(probabilities_V: Tensor, count: int) -> Tensor:
    """The ``count`` likeliest tokens, and those that tie with the last of them."""
    least = probabilities_V.topk(count).values[-1]
    return probabilities_V.masked_fill(probabilities_V < least, 0.0)


_FIRST_LOOK = 512
"""Tokens that are sorted before all are: the nucleus is rarely larger."""


def _keep_top_p(probabilities_V: Tensor, share: float) -> Tensor:
    """The smallest set of likeliest tokens whose probability reaches ``share`` of the whole."""
    wanted = share * float(probabilities_V.sum())
    top = probabilities_V.topk(min(_FIRST_LOOK, probabilities_V.numel()))
    values, ids = top.values, top.indices
    if float(values.sum()) < wanted:
        values, ids = probabilities_V.sort(descending=True, stable=True)
    kept = values.cumsum(0) - values < wanted
    nucleus_V = torch.zeros_like(probabilities_V)
    nucleus_V[ids[kept]] = values[kept]
    return nucleus_V


def _index(token_ids: Collection[int], vocab_size: int) -> Tensor:
    return torch.tensor([token for token in token_ids if token < vocab_size], dtype=torch.int64)
