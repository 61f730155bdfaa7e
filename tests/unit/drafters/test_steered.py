"""The steered drafter: which rows run under which steering vector, against a pass without cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor

from drafters.cached_model import CachedModel
from drafters.draft_tree import ChainShape, TreeShape
from drafters.small_model import SmallModelDrafter
from drafters.steered import SteeredDrafter, Steering, install_steering
from drafters.steering import HEADS, SteeringHead, SteeringShape
from engine.copy_source import NO_COPIES
from engine.models.decoder import Decoder
from engine.models.packed import pack_linears
from engine.records import SequenceView
from tests.support.causal import CausalContext
from tests.support.engines import random_decoder
from tests.support.tiny import LLAMA2

CONFIG = replace(LLAMA2, vocab_size=61)
VERIFIER_HIDDEN = 24
NUM_TOKENS = 4
PROMPT = (5, 17, 3, 42, 5, 17, 9, 30, 2, 11)
FEATURES = torch.randn(
    64, VERIFIER_HIDDEN, generator=torch.Generator().manual_seed(9), dtype=torch.float64
)
"""The verifier's state of every position."""

SHAPE = SteeringShape(
    verifier_hidden_size=VERIFIER_HIDDEN,
    taps=(1, 2, 3),
    drafter_hidden_size=CONFIG.hidden_size,
    drafter_intermediate_size=CONFIG.intermediate_size,
    layers=(0, 1, 2),
)


def trained_head(kind: type[SteeringHead] = SteeringHead) -> SteeringHead:
    """Strong enough that the vector decides what is drafted."""
    head = kind(SHAPE, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    for parameter in head.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(noise * 2 * parameter.shape[-1] ** -0.5)
    return head


def view(token_ids: Sequence[int], *, request: str = "a") -> SequenceView:
    return SequenceView(
        request_id=request,
        token_ids=list(token_ids),
        copies=NO_COPIES,
        max_draft_tokens=99,
        probe_score=None,
        features=FEATURES[: len(token_ids) - 1],
    )


def steered_drafter(
    kind: type[SteeringHead] = SteeringHead, *, num_slots: int = 2
) -> SteeredDrafter:
    model = random_decoder(CONFIG, seed=1, max_model_len=128, dtype=torch.float64)
    steering = install_steering(model, trained_head(kind))
    cached = CachedModel(model, num_slots=num_slots, max_length=128)
    return SteeredDrafter(SmallModelDrafter(cached, ChainShape(num_tokens=NUM_TOKENS)), steering)


class Oracle:
    """Continues without a cache when told, row by row, whose position's vector steers it."""

    def __init__(self, kind: type[SteeringHead] = SteeringHead) -> None:
        self._model: Decoder = random_decoder(CONFIG, seed=1, dtype=torch.float64)
        self._steering: Steering = install_steering(self._model, trained_head(kind))

    def continuation(
        self, token_ids: Sequence[int], steered_by: Sequence[int | None]
    ) -> tuple[int, ...]:
        """Draft tokens; each of them is steered as the last given row is."""
        tokens, sources = list(token_ids), list(steered_by)
        assert len(tokens) == len(sources)
        for _ in range(NUM_TOKENS):
            tokens.append(self._next(tokens, sources))
            sources.append(sources[-1])
        return tuple(tokens[len(token_ids) :])

    def _next(self, tokens: Sequence[int], sources: Sequence[int | None]) -> int:
        head = self._steering.head
        rows = [
            torch.zeros(SHAPE.drafter_intermediate_size).expand(3, -1).double()
            if source is None
            else head(FEATURES[source])
            for source in sources
        ]
        self._steering.set_signals(torch.stack(rows, dim=1))
        hidden: Tensor = self._model(torch.tensor(tokens), CausalContext(len(tokens)))
        return int(self._model.logits(hidden[-1:]).argmax())


def prompt_sources(row_na: int) -> list[int | None]:
    """Everything before row NA is unsteered, row NA and the pending token follow its vector."""
    return [None] * row_na + [row_na, row_na]


def draft(drafter: SteeredDrafter, token_ids: Sequence[int], *, request: str = "a") -> list[int]:
    (chain,) = drafter.draft(view(token_ids, request=request)).candidates
    return list(chain)


def test_the_first_draft_is_steered_by_the_last_prompt_token() -> None:
    """Catches a steered prompt, and a vector that is one row early or late."""
    context = (*PROMPT, 7)
    expected = Oracle().continuation(context, prompt_sources(len(PROMPT) - 1))
    assert draft(steered_drafter(), context) == list(expected)
    one_off = Oracle().continuation(context, [*prompt_sources(len(PROMPT) - 1)[:-1], 8])
    assert one_off != expected, "the vectors must matter for this test to mean anything"


@pytest.mark.parametrize("accepted", [0, 2, NUM_TOKENS])
def test_a_later_draft_follows_the_new_row_na(accepted: int) -> None:
    """Accepted drafts keep the vector they were drafted under; what is caught up follows the new.

    All rejected: row NA is the pending token's own row of the last step.
    """
    drafter, first = steered_drafter(), (*PROMPT, 7)
    old, new = len(PROMPT) - 1, len(PROMPT) + accepted
    drafted = draft(drafter, first)
    second = (*first, *drafted[:accepted], 50)
    read_while_drafting = min(accepted, NUM_TOKENS - 1)
    sources = prompt_sources(old) + [old] * read_while_drafting
    sources += [new] * (len(second) - len(sources))
    assert len(view(second).features) == new + 1  # type: ignore[arg-type]
    assert draft(drafter, second) == list(Oracle().continuation(second, sources))


def test_copied_tokens_are_caught_up_under_the_new_vector() -> None:
    """A copy step never asks the drafter: its tokens are read with the next neural draft."""
    drafter, first = steered_drafter(), (*PROMPT, 7)
    draft(drafter, first)
    second = (*first, 50, 51, 52, 53, 54)
    old, new = len(PROMPT) - 1, len(second) - 2
    sources = prompt_sources(old) + [new] * 5
    assert draft(drafter, second) == list(Oracle().continuation(second, sources))


def test_requests_do_not_steer_each_other() -> None:
    """Catches a prompt that is read under the vector of the request before."""
    drafter = steered_drafter()
    other = (*PROMPT[::-1], 20)
    draft(drafter, (*PROMPT, 7), request="a")
    expected = Oracle().continuation(other, prompt_sources(len(PROMPT) - 1))
    assert draft(drafter, other, request="b") == list(expected)


def test_an_evicted_request_is_rebuilt_unsteered_up_to_row_na() -> None:
    """The vectors of its first rows are no longer known to matter: it starts like a prompt."""
    drafter, first = steered_drafter(num_slots=1), (*PROMPT, 7)
    draft(drafter, first, request="a")
    draft(drafter, (*PROMPT, 8), request="b")
    second = (*first, 50, 51)
    expected = Oracle().continuation(second, prompt_sources(len(second) - 2))
    assert draft(drafter, second, request="a") == list(expected)
    drafter.forget("a")
    assert draft(drafter, second, request="a") == list(expected)


def test_a_prompt_of_one_token_can_be_drafted_for() -> None:
    """There is nothing in front of row NA."""
    expected = Oracle().continuation((4, 9), [0, 0])
    assert draft(steered_drafter(), (4, 9)) == list(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", HEADS.values())
def test_an_untrained_steered_drafter_drafts_like_the_unsteered_one(
    kind: type[SteeringHead], dtype: torch.dtype
) -> None:
    """Same kernels, same states: the drafters' last states are equal bit for bit."""
    plain, model = (random_decoder(CONFIG, seed=1, dtype=dtype) for _ in range(2))
    head = kind(SHAPE)
    steering = install_steering(model, head)
    for module in (plain, model, head):
        pack_linears(module)
    states: list[Tensor] = []
    drafters: list[SmallModelDrafter | SteeredDrafter] = []
    for decoder in (plain, model):
        decoder.register_forward_hook(lambda _, __, output: states.append(output[-1:]))
        cached = CachedModel(decoder, num_slots=1, max_length=128)
        drafters.append(SmallModelDrafter(cached, ChainShape(num_tokens=NUM_TOKENS)))
    steered = SteeredDrafter(cast("SmallModelDrafter", drafters[1]), steering)
    # The steered drafter reads a prompt in two passes, so the plain one is given the same passes.
    for length in (len(PROMPT) + 1, len(PROMPT) + 4):
        tokens = (*PROMPT, 7, 8, 9, 10)[:length]
        if length == len(PROMPT) + 1:
            cast("SmallModelDrafter", drafters[0]).read(view(tokens), length - 2)
        expected = drafters[0].draft(view(tokens))
        split = len(states)
        assert steered.draft(view(tokens)) == expected
        assert all(torch.equal(a, b) for a, b in zip(states[:split], states[split:], strict=True))
        states.clear()


def test_trees_are_steered_too() -> None:
    """Every level runs under the vector: a tree's best child is the chain's first token."""
    model = random_decoder(CONFIG, seed=1, max_model_len=128, dtype=torch.float64)
    steering = install_steering(model, trained_head())
    cached = CachedModel(model, num_slots=1, max_length=128)
    shape = TreeShape(total_nodes=40, depth=NUM_TOKENS, top_k=1)
    drafter = SteeredDrafter(SmallModelDrafter(cached, shape), steering)
    context = (*PROMPT, 7)
    assert draft(drafter, context) == draft(steered_drafter(), context)
