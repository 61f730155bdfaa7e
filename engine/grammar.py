"""Structured output: which tokens may follow, by llguidance (guidance-ai/llguidance, MIT).

A matcher moves on with tokens that became output and never with drafts; drafts are cut where they
leave the grammar, so that no row is spent on them (vllm#14702).

Legend: V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor

from engine.tokenizer import Tokenizer

ANY_JSON_OBJECT = {"type": "object"}


def json_grammar(schema: dict[str, Any]) -> str:
    """The grammar of JSON texts that a schema allows."""
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def call_grammar(schema: dict[str, Any], opening: str, closing: str) -> str:
    """The grammar of one JSON text between two tags; empty tags are none."""
    if not opening:
        return json_grammar(schema)
    lark = f'start: {json.dumps(opening)} "\\n" call "\\n" {json.dumps(closing)}\n'
    return str(LLMatcher.grammar_from_lark(lark + f"call: %json {json.dumps(schema)}\n"))


class GrammarFactory:
    """Makes matchers for one tokenizer, which is read when the first is needed."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._known: LLTokenizer | None = None

    def check(self, grammar: str) -> None:
        """Raises ``ValueError`` with the library's first complaint."""
        complaint = LLMatcher.validate_grammar(grammar, self._read_tokenizer())
        if complaint:
            raise ValueError(complaint.strip().splitlines()[0])

    def matcher(self, grammar: str, stop_ids: Collection[int]) -> GrammarMatcher:
        """A matcher at the start of an output that ends with one of ``stop_ids``."""
        return GrammarMatcher(LLMatcher(self._read_tokenizer(), grammar), frozenset(stop_ids))

    def _read_tokenizer(self) -> LLTokenizer:
        if self._known is None:
            self._known = from_tokenizer(self._tokenizer.inner, n_vocab=self._vocab_size)
        return self._known


class GrammarMatcher:
    """Implements ``engine.token_sampler.TokenGrammar``."""

    def __init__(self, matcher: LLMatcher, stop_ids: frozenset[int]) -> None:
        self._matcher, self._stop_ids = matcher, stop_ids

    def mask(self, logits_V: Tensor) -> Tensor:
        """The logits with every token that cannot follow made impossible.

        Whoever is complete may stop, and must where nothing can follow.
        """
        allowed_V = np.zeros(logits_V.numel(), dtype=bool)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed_V = np.unpackbits(bits, bitorder="little")[: logits_V.numel()].astype(bool)
        allowed_V[list(self._stop_ids)] = self._matcher.is_accepting() or not allowed_V.any()
        return logits_V.masked_fill(~torch.from_numpy(allowed_V), -torch.inf)

    def accept(self, token: int) -> None:
        """The token became output."""
        if token not in self._stop_ids:
            self._matcher.consume_token(token)

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, could follow."""
        if self._matcher.is_stopped():
            return 0
        return int(self._matcher.validate_tokens(list(token_ids)))
