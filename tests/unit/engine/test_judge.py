"""What a step does to a sequence, on a hand-made example: row NA, the pending token, limits."""

from __future__ import annotations

from drafters.copy_index import CopyIndex
from engine.block import SequenceRows
from engine.candidates import merge_candidates
from engine.drafting import Drafters
from engine.judge import Judgement, RowResults, judge
from engine.records import Draft, Request, TokenEvent
from engine.request_stats import RequestStats
from engine.sequence import Sequence
from engine.speculation import speculation

PROMPT = (5, 6, 7, 5, 6)


def decoding_sequence(*, max_tokens: int = 20, max_model_len: int = 64) -> Sequence:
    """Prompt committed, pending token 7 (position 5), kappa 2."""
    request = Request(request_id="r", prompt_ids=PROMPT, max_tokens=max_tokens)
    sequence = Sequence(
        request=request,
        slot=1,
        copies=CopyIndex([2], 3),
        max_model_len=max_model_len,
        drafting=Drafters().drafting(speculation("vanilla")),
        stats=RequestStats(arrived=0.0),
    )
    sequence.committed_length = 5
    sequence.token_ids.append(7)
    sequence.copies.append([7])
    sequence.draft = Draft(source="copy", match_length=2)
    return sequence


def run(sequence: Sequence, next_ids: list[int], scores: list[float], stop: set[int]) -> Judgement:
    """Verify the trie 7 -> 5 -> 6 with the verifier saying ``next_ids``."""
    rows = SequenceRows(1, 5, merge_candidates(7, [(5, 6)], 9), wants_all=True)
    results = RowResults(next_ids, [1.0, 0.001, 1.0], [scores], first_row=4)
    return judge(sequence, rows, results, stop_ids=stop, near_tie_margin=0.01, verify_ms=1.0)


def event_of(judgement: Judgement) -> TokenEvent:
    """The event of a step that brought tokens."""
    assert judgement.event is not None
    return judgement.event


def test_kappa_gram_ends_at_the_pending_token() -> None:
    """Before the step the suffix (6, 7) is found at positions 1-2 and its continuation is 5."""
    found = decoding_sequence().copies.continuations(match_length=2, max_candidates=1, max_tokens=3)
    assert found == ((5, 6, 7),)


def test_probe_is_read_at_the_last_accepted_row() -> None:
    """One draft token accepted: row NA is row 1, and its score gates the next step."""
    sequence = decoding_sequence()
    judgement = run(sequence, [5, 9, 0], [0.1, 0.8, 0.3], set())
    assert sequence.probe_score == 0.8
    assert sequence.token_ids[-2:] == [5, 9]
    assert sequence.committed_length == 7
    assert judgement.commit.rows == (4, 5)
    assert judgement.commit.start_length == 5
    assert event_of(judgement).sources == ("copy", "verifier")
    assert (judgement.record.accepted, judgement.record.output) == (1, 2)


def test_probe_is_read_at_the_pending_row_when_all_is_rejected() -> None:
    """Nothing accepted: row NA is the pending token's row."""
    sequence = decoding_sequence()
    judgement = run(sequence, [1, 9, 0], [0.1, 0.8, 0.3], set())
    assert sequence.probe_score == 0.1
    assert judgement.commit.rows == (4,)
    assert judgement.record.accepted == 0


def test_stop_token_inside_a_block_ends_the_request_there() -> None:
    """Token 5 stops; 6, also accepted, never becomes output."""
    sequence = decoding_sequence()
    judgement = run(sequence, [5, 6, 3], [0.0] * 3, {5})
    assert event_of(judgement).token_ids == (5,)
    assert event_of(judgement).finish_reason == "stop"


def test_max_tokens_cuts_a_block() -> None:
    """One token was produced already and two may come, though three were verified."""
    sequence = decoding_sequence(max_tokens=3)
    judgement = run(sequence, [5, 6, 3], [0.0] * 3, set())
    assert event_of(judgement).token_ids == (5, 6)
    assert event_of(judgement).finish_reason == "length"


def test_max_model_len_ends_a_request_and_clips_its_drafts() -> None:
    """Seven tokens in all: prompt 5, pending 1, so one more and no room for a draft."""
    sequence = decoding_sequence(max_model_len=7)
    assert sequence.view().max_draft_tokens == 0
    judgement = run(sequence, [5, 6, 3], [0.0] * 3, set())
    assert event_of(judgement).token_ids == (5,)
    assert event_of(judgement).finish_reason == "length"


def test_near_ties_are_recorded_with_their_position() -> None:
    """Row 1's margin is below the tolerance: its token is the eighth of the sequence."""
    judgement = run(decoding_sequence(), [5, 6, 3], [0.0] * 3, set())
    assert [(tie.position, tie.margin) for tie in judgement.record.near_ties] == [(7, 0.001)]
