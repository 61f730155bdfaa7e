"""Draft vocabularies: offsets, membership, and maps that cannot be."""

from __future__ import annotations

import pytest
import torch

from drafters.vocabulary import DraftVocabulary

THREE_OF_SIX = DraftVocabulary(target_ids=torch.tensor([1, 2, 5]), vocab_size=6)


def test_d2t_holds_offsets_not_tokens() -> None:
    """Hand-made: draft ids 0, 1, 2 mean tokens 1, 2, 5, so d2t is 1, 1, 3."""
    read = DraftVocabulary.from_offsets(torch.tensor([1, 1, 3]), 6)
    assert read.target_ids.tolist() == [1, 2, 5]
    assert THREE_OF_SIX.offsets.tolist() == [1, 1, 3]


def test_membership_is_over_the_verifiers_tokens() -> None:
    assert THREE_OF_SIX.membership.tolist() == [False, True, True, False, False, True]
    assert THREE_OF_SIX.draft_ids.tolist() == [-1, 0, 1, -1, -1, 2]


def test_ids_of_any_shape_are_mapped() -> None:
    assert THREE_OF_SIX.to_target(torch.tensor([[0, 2], [1, 1]])).tolist() == [[1, 5], [2, 2]]
    assert int(THREE_OF_SIX.to_target(torch.tensor(2))) == 5


def test_probabilities_are_spread_over_the_verifiers_vocabulary() -> None:
    """Catches probabilities left at their draft ids: a sampler would weigh the wrong tokens."""
    spread = THREE_OF_SIX.spread(torch.tensor([[0.5, 0.25, 0.25]]))
    assert spread.tolist() == [[0.0, 0.5, 0.25, 0.0, 0.0, 0.25]]


def test_the_whole_vocabulary_maps_every_token_to_itself() -> None:
    whole = DraftVocabulary.whole(4)
    assert whole.size == whole.vocab_size == 4
    assert whole.offsets.tolist() == [0, 0, 0, 0]


def test_the_most_frequent_tokens_are_kept_in_the_order_of_their_ids() -> None:
    """Ties go to the lowest id, so that the choice does not depend on a sort."""
    counts = torch.tensor([3, 9, 0, 3, 7, 3])
    assert DraftVocabulary.most_frequent(counts, 3).target_ids.tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 1, 4], "draft id 2 means token 6, which is outside .* 0 to 5"),
        ([-1, 1, 3], "draft id 0 means token -1, which is outside"),
        ([1, 0, 3], "3 draft ids mean 2 different tokens"),
    ],
)
def test_impossible_maps_are_refused(offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftVocabulary.from_offsets(torch.tensor(offsets), 6)
