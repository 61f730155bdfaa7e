"""SwitchSD+ takes the option with the most expected tokens per expected time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drafters.copy_index import CopyIndex
from engine.candidates import chain
from engine.draft_economy import LookaheadCounts, TypicalTime
from engine.outlook import Outlook
from engine.policies.options import best_option, copy_draft, merged_draft
from engine.policies.switch_sd_plus import GatedChooser, SwitchSDPlus
from engine.rated_copies import RatedCopies
from engine.records import Draft, NeuralWish, SequenceView, StepRecord, VerifiedStep
from engine.step_time import StepTimeTable
from tests.support.gates import gate

FREE_ROWS = StepTimeTable((1, 100), (10.0, 10.0))
DEAR_ROWS = StepTimeTable((1, 2, 100), (10.0, 20.0, 1000.0))


def copies(*ratings: float) -> RatedCopies:
    """A single chain."""
    path = tuple(range(100, 100 + len(ratings)))
    return RatedCopies(
        candidates=(path,),
        ratings=(ratings,),
        probabilities=ratings,
        first_token=ratings[0],
        match_length=4,
    )


def outlook(
    table: StepTimeTable | None = FREE_ROWS,
    *,
    accepted: Sequence[float] = (0.5, 0.25),
    call_ms: float = 1.0,
) -> Outlook:
    counts = LookaheadCounts(
        drafted=[1.0] * len(accepted),
        accepted=list(accepted),
        call=TypicalTime(milliseconds=call_ms),
    )
    return Outlook(step_times=table, rows=1, num_sequences=1, lookahead=counts)


def test_a_sure_copy_is_copied_and_the_drafter_is_not_asked() -> None:
    assert best_option(copies(0.99, 0.98, 0.97), outlook(), 2).source == "copy"


def test_without_copies_it_drafts_the_lookahead_that_pays() -> None:
    best = best_option(RatedCopies(), outlook(accepted=(0.8, 0.01), call_ms=2.0), 2)
    assert (best.source, best.lookahead) == ("neural", 1)
    assert best.rate == pytest.approx(1.8 / 14.0)
    assert best_option(RatedCopies(), outlook(call_ms=50.0), 2).source == "plain"
    assert best_option(RatedCopies(), outlook(), 0).source == "plain"


def test_doubtful_copies_and_drafts_go_into_one_trie() -> None:
    best = best_option(copies(0.4, 0.38, 0.36), outlook(call_ms=0.1), 2)
    assert (best.source, best.lookahead) == ("merged", 2)
    assert best.rate == pytest.approx((1 + 1.14 + 0.6 * 0.75) / 10.3)


def test_rows_that_cost_more_than_they_bring_are_left() -> None:
    best = best_option(copies(0.5, 0.4), outlook(DEAR_ROWS, call_ms=90.0), 2)
    assert best.source == "plain"


def test_a_copy_that_the_drafter_agrees_with_is_likelier() -> None:
    drafted = Draft(source="neural", candidates=((100, 7),))
    draft = merged_draft(copies(0.4, 0.36), (0.5, 0.5), drafted)
    assert draft.source == "merged"
    assert draft.candidates == ((100, 7), (100, 101))
    assert draft.probabilities[0] == pytest.approx((0.7, 0.5 * 0.6))
    assert draft.probabilities[1] == pytest.approx((0.7, 0.36 * 0.7 / 0.4))


def test_a_drafter_without_an_answer_leaves_the_copies() -> None:
    assert merged_draft(copies(0.4), (0.5,), Draft()) == copy_draft(copies(0.4))


def view(tokens: Sequence[int], score: float | None, source: CopyIndex) -> SequenceView:
    return SequenceView(
        request_id="r",
        token_ids=tokens,
        copies=source,
        max_draft_tokens=9,
        probe_score=score,
        outlook=outlook(),
    )


def started(num_speculative_tokens: int = 0) -> tuple[GatedChooser, CopyIndex, list[int]]:
    policy = SwitchSDPlus(gate=gate(), num_speculative_tokens=num_speculative_tokens)
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    source = CopyIndex((), 20, min_match=2)
    source.append(tokens)
    chooser = policy.begin()
    assert isinstance(chooser, GatedChooser)
    return chooser, source, tokens


def test_the_gates_probe_decides_whether_a_match_is_copied() -> None:
    chooser, source, tokens = started()
    draft = chooser.choose(view(tokens, 0.9, source))
    assert isinstance(draft, Draft)
    assert (draft.source, draft.candidates) == ("copy", ((3, 4, 5, 6, 1, 2),))
    assert len(draft.probabilities[0]) == 6
    chooser, source, tokens = started(num_speculative_tokens=2)
    wish = chooser.choose(view(tokens, 0.1, source))
    assert isinstance(wish, NeuralWish)
    answered = wish.finish(Draft(source="neural", candidates=((9,),)))
    assert answered.candidates[0] == (9,)


def test_a_request_remembers_how_its_copies_did_even_unverified() -> None:
    chooser, source, tokens = started()
    chooser.choose(view(tokens, 0.9, source))
    record = StepRecord(
        request="r",
        step=1,
        source="plain",
        drafted=0,
        rows=1,
        accepted=0,
        output=1,
        draft_ms=0.0,
        verify_ms=1.0,
    )
    step = VerifiedStep(record=record, tree=chain([2]), next_ids=[3], output_ids=(3,))
    before = chooser.recent.hits
    chooser.observe(step)
    assert chooser.recent.hits > before
    after = chooser.recent.hits
    chooser.observe(step)
    assert chooser.recent.hits == after, "a step that was not asked about says nothing of copies"
    other, _, _ = started()
    assert other.recent.hits == before, "every request has its own memory"
