"""Medusa's defining behaviour: heads over one state, products of their likeliest tokens, a tree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drafters.medusa import MedusaDrafter
from drafters.medusa_heads import MedusaConfig, MedusaHeads
from drafters.static_tree import StaticTree
from drafters.vocabulary import DraftVocabulary
from engine.copy_source import NO_COPIES
from engine.records import SequenceView

HIDDEN, VOCAB = 4, 11
CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


HEAD = random(VOCAB, HIDDEN, seed=1)
"""The verifier's vocabulary projection."""


def new_heads(num_heads: int = 2, target_ids: list[int] | None = None) -> MedusaHeads:
    """Untrained heads over the verifier's projection, or a part of it."""
    vocabulary = DraftVocabulary.whole(VOCAB)
    if target_ids is not None:
        vocabulary = DraftVocabulary(target_ids=torch.tensor(target_ids), vocab_size=VOCAB)
    config = MedusaConfig(
        num_heads=num_heads,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        draft_vocab_size=vocabulary.size,
    )
    heads = MedusaHeads(config, vocabulary, dtype=torch.float64, device=CPU)
    heads.set_projection(0, HEAD)
    return heads


def taught_heads(target_ids: list[int] | None = None) -> MedusaHeads:
    heads = new_heads(target_ids=target_ids)
    heads.weight.data.copy_(random(2, HIDDEN, HIDDEN, seed=2))
    heads.bias.data.copy_(random(2, HIDDEN, seed=3))
    return heads


def by_hand(heads: MedusaHeads, state_H: Tensor) -> list[list[int]]:
    """Per head the tokens of the whole vocabulary, likeliest first, written out."""
    found = []
    for weight_HH, bias_H in zip(heads.weight, heads.bias, strict=True):
        inner_H = weight_HH @ state_H + bias_H
        logits_V = HEAD @ (state_H + inner_H * functional.sigmoid(inner_H))
        found.append(logits_V.argsort(descending=True).tolist())
    return found


def view(states_RH: Tensor, max_draft_tokens: int = 5) -> SequenceView:
    return SequenceView(
        request_id="r",
        token_ids=list(range(len(states_RH) + 1)),
        copies=NO_COPIES,
        max_draft_tokens=max_draft_tokens,
        probe_score=None,
        features=states_RH,
    )


def test_untrained_heads_say_what_the_verifiers_head_says() -> None:
    states_RH = random(6, HIDDEN)
    logits_KRV = new_heads(3).logits(states_RH)
    assert logits_KRV.shape == (3, 6, VOCAB)
    for logits_RV in logits_KRV:
        torch.testing.assert_close(logits_RV, states_RH @ HEAD.T)


def test_candidates_are_the_heads_likeliest_tokens_in_the_shape_of_the_tree() -> None:
    """From the state of the last row alone: row NA."""
    heads, states_RH = taught_heads(), random(3, HIDDEN)
    first, second = by_hand(heads, states_RH[-1])
    tree = StaticTree(nodes=((0,), (1,), (0, 0), (0, 2), (1, 1)))
    draft = MedusaDrafter(heads, tree).draft(view(states_RH))
    assert draft.candidates == (
        (first[0], second[0]),
        (first[1], second[1]),
        (first[0], second[2]),
    )
    assert draft.source == "neural"
    assert draft.probabilities == ()


def test_measured_accuracies_rate_every_prefix() -> None:
    """Powers of two: the products are exact."""
    tree = StaticTree(nodes=((0,), (0, 1), (1,)), accuracies=((0.5, 0.25), (0.5, 0.125)))
    draft = MedusaDrafter(taught_heads(), tree).draft(view(random(2, HIDDEN)))
    assert draft.probabilities == ((0.5, 0.0625), (0.25,))


def test_no_candidate_is_longer_than_what_can_still_become_output() -> None:
    drafter = MedusaDrafter(taught_heads(), StaticTree(nodes=((0,), (0, 0), (0, 1), (1,))))
    states_RH = random(2, HIDDEN)
    assert [len(c) for c in drafter.draft(view(states_RH, 1)).candidates] == [1, 1]
    assert drafter.draft(view(states_RH, 0)).candidates == ()


def test_a_part_of_the_vocabulary_proposes_the_best_of_that_part() -> None:
    allowed = [2, 3, 5, 7]
    heads, states_RH = taught_heads(allowed), random(1, HIDDEN)
    first, second = by_hand(heads, states_RH[-1])
    drafter = MedusaDrafter(heads, StaticTree(nodes=((0,), (0, 1))))
    best = next(token for token in first if token in allowed)
    second_best = [token for token in second if token in allowed][1]
    assert drafter.draft(view(states_RH)).candidates == ((best, second_best),)


def test_heads_with_projections_of_their_own_use_them() -> None:
    config = MedusaConfig(
        num_heads=2,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        shares_projection=False,
    )
    heads = MedusaHeads(config, DraftVocabulary.whole(VOCAB), dtype=torch.float64, device=CPU)
    for head in range(2):
        heads.set_projection(head, random(VOCAB, HIDDEN, seed=head))
    states_RH = random(3, HIDDEN)
    for head, logits_RV in enumerate(heads.logits(states_RH)):
        expected = states_RH @ random(VOCAB, HIDDEN, seed=head).T
        torch.testing.assert_close(logits_RV, expected)


@pytest.mark.parametrize("nodes", [((0,), (0, 0), (0, 0, 0)), ((0,), (11,))])
def test_a_tree_beyond_the_heads_is_refused(nodes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="does not fit 2 Medusa heads over 11 tokens"):
        MedusaDrafter(new_heads(), StaticTree(nodes=nodes))
