"""Batches: every transcript once an epoch, within the token limit, the same however reached."""

from __future__ import annotations

import pytest
import torch

from drafters.training.batches import (
    TrainingBatches,
    collate,
    derived_generator,
    epoch_plan,
    fingerprint,
    validation_batches,
)
from drafters.training.capture import Transcript
from parallel.data_parallel import DataParallel
from tests.support.toy_training import toy_config, toy_transcripts

ONE = DataParallel.single()


def test_padding_is_on_the_right_and_only_generated_tokens_are_marked() -> None:
    entries = [
        Transcript(prompt_ids=(5, 6, 7), output_ids=(8,)),
        Transcript(prompt_ids=(9,), output_ids=(3, 2, 1, 4)),
    ]
    batch = collate(entries, (1, 0))
    assert batch.token_ids.tolist() == [[9, 3, 2, 1, 4], [5, 6, 7, 8, 0]]
    assert batch.generated.int().tolist() == [[0, 1, 1, 1, 1], [0, 0, 0, 1, 0]]
    assert batch.lengths.tolist() == [5, 4]
    assert batch.indices == (1, 0)
    assert (batch.num_tokens, batch.num_generated) == (9, 5)


@pytest.mark.parametrize("limit", [20, 64, 1_000])
def test_each_epoch_has_every_transcript_once_within_the_limit(limit: int) -> None:
    lengths = [len(entry.token_ids) for entry in toy_transcripts(60)]
    config = toy_config(tokens_per_batch=limit)
    for epoch in range(3):
        plan = epoch_plan(lengths, config, epoch)
        assert sorted(index for batch in plan for index in batch) == list(range(60))
        assert all(len(b) * max(lengths[index] for index in b) <= limit for b in plan)


def test_batches_hold_transcripts_of_similar_length() -> None:
    """Sorting inside pools must leave little padding; without it about a third is padding."""
    lengths = [len(entry.token_ids) for entry in toy_transcripts(60)]
    plan = epoch_plan(lengths, toy_config(tokens_per_batch=64), 0)
    padded = sum(len(b) * max(lengths[index] for index in b) for b in plan)
    assert padded < 1.1 * sum(lengths)


def test_order_depends_on_seed_and_epoch() -> None:
    lengths = [len(entry.token_ids) for entry in toy_transcripts(60)]
    config, other = toy_config(), toy_config(seed=1)
    first = epoch_plan(lengths, config, 0)
    assert first == epoch_plan(lengths, config, 0)
    assert first != epoch_plan(lengths, config, 1)
    assert first != epoch_plan(lengths, other, 0)
    widths = [max(lengths[index] for index in batch) for batch in first]
    assert widths != sorted(widths), "short batches must not all come first"


def test_any_step_can_be_asked_first() -> None:
    """Catches a data position that depends on the steps before: a resumed run would differ."""
    config = toy_config(steps=50)
    in_order = TrainingBatches(toy_transcripts(60), config, ONE)
    seen = [[batch.indices for batch in in_order.of_step(step)] for step in range(50)]
    assert in_order.epoch_of(49) > 2
    for step in (49, 0, 31, 30):
        fresh = TrainingBatches(toy_transcripts(60), config, ONE)
        assert [batch.indices for batch in fresh.of_step(step)] == seen[step]


def test_an_epoch_of_steps_repeats_no_transcript() -> None:
    batches = TrainingBatches(toy_transcripts(60), toy_config(steps=None, epochs=2), ONE)
    for epoch in (0, 1):
        steps = [s for s in range(batches.total_steps) if batches.epoch_of(s) == epoch]
        seen = [index for step in steps for b in batches.of_step(step) for index in b.indices]
        assert sorted(seen) == list(range(60))
    assert {batches.epoch_of(step) for step in range(batches.total_steps)} == {0, 1}


def test_ranks_share_the_batches_of_one_rank_with_more_accumulation() -> None:
    alone = TrainingBatches(toy_transcripts(60), toy_config(gradient_accumulation=6), ONE)
    for step in range(8):
        shares = [
            TrainingBatches(
                toy_transcripts(60),
                toy_config(gradient_accumulation=2),
                DataParallel(rank=rank, size=3),
            ).of_step(step)
            for rank in range(3)
        ]
        assert [len(share) for share in shares] == [2, 2, 2]
        together = {batch.indices for share in shares for batch in share}
        assert together == {batch.indices for batch in alone.of_step(step)}


def test_data_smaller_than_a_step_is_repeated() -> None:
    batches = TrainingBatches(toy_transcripts(2), toy_config(gradient_accumulation=8), ONE)
    step = batches.of_step(3)
    assert len(step) == 8
    assert {index for batch in step for index in batch.indices} == {0, 1}


def test_validation_batches_count_every_transcript_once_over_the_ranks() -> None:
    """Every rank must run as many passes as the others, or sharded weights hang."""
    entries = toy_transcripts(11)
    shares = [validation_batches(entries, 20, DataParallel(rank=r, size=4)) for r in range(4)]
    assert len({len(share) for share in shares}) == 1
    counted = [i for share in shares for batch, counts in share if counts for i in batch.indices]
    assert sorted(counted) == list(range(11))
    assert any(not counts for share in shares for _, counts in share)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "no training transcripts"),
        ([Transcript(prompt_ids=(1,), output_ids=())], "transcript 0 has no answer"),
        ([Transcript(prompt_ids=(), output_ids=(1,))], "transcript 0 has no prompt"),
        ([Transcript(prompt_ids=(1,) * 60, output_ids=(1,) * 5)], "has 65 tokens.*is 64"),
    ],
)
def test_transcripts_that_cannot_be_trained_on_are_named(
    entries: list[Transcript], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingBatches(entries, toy_config(), ONE)


def test_fingerprint_tells_data_apart() -> None:
    moved = [Transcript(prompt_ids=(1, 2), output_ids=(3,))]
    assert fingerprint(moved) != fingerprint([Transcript(prompt_ids=(1,), output_ids=(2, 3))])
    assert fingerprint(moved) == fingerprint([Transcript(prompt_ids=(1, 2), output_ids=(3,))])


def test_derived_generators_differ_by_place() -> None:
    places: list[tuple[int, tuple[object, ...]]] = [
        (0, ("loss", 1, 2)),
        (0, ("loss", 2, 1)),
        (0, ("order", 1, 2)),
        (1, ("loss", 1, 2)),
    ]
    drawn = {torch.rand((), generator=derived_generator(s, *place)).item() for s, place in places}
    assert len(drawn) == len(places)
