"""The defining behaviour of the context and bandit methods, on hand-made examples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.copy_index import CopyIndex
from engine.bandits import EXP3, UCB1
from engine.candidates import leaf_paths, merge_candidates
from engine.copy_source import NO_COPIES, CopySource
from engine.policies.bandit_spec import Arm, BanditSpec, arms, rate_of, tokens_of
from engine.policies.fallback import Fallback
from engine.policies.lookahead import Lookahead, LookaheadChooser, NGramPool
from engine.policies.rasd import Rasd, fused
from engine.policies.sam_decoding import SamDecoding
from engine.records import Draft, NeuralWish, SequenceView, StepRecord, VerifiedStep
from engine.suffix_automaton import SuffixAutomaton


def view(tokens: Sequence[int], copies: CopySource = NO_COPIES) -> SequenceView:
    return SequenceView(
        request_id="r", token_ids=tokens, copies=copies, max_draft_tokens=50, probe_score=None
    )


def step(output: int, *, ms: float = 1.0) -> VerifiedStep:
    record = StepRecord(
        request="r",
        step=1,
        source="plain",
        drafted=0,
        rows=1,
        accepted=output - 1,
        output=output,
        draft_ms=0.0,
        verify_ms=ms,
    )
    return VerifiedStep(record=record, tree=merge_candidates(0, [], 1), next_ids=[0])


def indexed(tokens: Sequence[int], match_length: int) -> CopyIndex:
    index = CopyIndex((match_length,), 10)
    index.append(tokens)
    return index


# BanditSpec


def test_ucb1_explores_by_the_arms_own_counts() -> None:
    """With one count for all arms (the released code) the poor arm 1 would never come again."""
    bandit, pulls = UCB1(2), []
    for _ in range(40):
        arm = bandit.choose()
        pulls.append(arm)
        bandit.observe(arm, (0.9, 0.5)[arm])
    assert pulls[:2] == [0, 1]
    assert 4 < pulls.count(1) < 20
    assert 1 in pulls[20:]


def test_exp3_weights_a_reward_by_how_rare_the_arm_was() -> None:
    bandit = EXP3(2, exploration=0.2)
    assert bandit.probabilities == [0.5, 0.5]
    bandit.observe(1, 1.0)
    assert bandit.log_weights == [0.0, pytest.approx(0.2 * (1 / 0.5) / 2)]
    assert bandit.probabilities[1] > 0.5
    assert sum(bandit.probabilities) == pytest.approx(1.0)


def test_a_bandit_copies_or_drafts_and_an_empty_copy_counts() -> None:
    policy = BanditSpec(
        new_bandit=UCB1, arms=arms(copy_tokens=4, neural_tokens=5), reward=tokens_of, match_length=2
    )
    chooser = policy.begin()
    first = chooser.choose(view([1, 2, 3]))
    assert first == Draft(reason="no_match"), "the copy arm without a match is an empty step"
    chooser.observe(step(1))
    lengths = []
    for _ in range(2):
        wish = chooser.choose(view([1, 2, 3]))
        assert isinstance(wish, NeuralWish)
        lengths.append(wish.max_tokens)
        chooser.observe(step(4))
    assert lengths == [2, 5]
    tokens = [7, 8, 9, 7, 8]
    copied = policy.begin().choose(view(tokens, indexed(tokens, 2)))
    assert isinstance(copied, Draft)
    assert copied.candidates == ((9, 7, 8),)


def test_rewards_are_tokens_or_their_rate() -> None:
    assert (tokens_of(step(4, ms=8.0)), rate_of(step(4, ms=8.0))) == (4.0, 0.5)
    assert arms(copy_tokens=20, neural_tokens=0) == (Arm("copy", 5), Arm("copy", 20), Arm("plain"))


# SAM-Decoding


def longest_repeated_suffix(tokens: Sequence[int]) -> tuple[int, int]:
    """(length, end of its first occurrence), by trying every length."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = list(tokens[-length:])
        for end in range(length - 1, len(tokens) - 1):
            if list(tokens[end - length + 1 : end + 1]) == suffix:
                return length, end
    return 0, -1


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_automaton_finds_the_longest_repeated_suffix(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for count, token in enumerate(tokens, start=1):
        automaton.extend([token])
        length, end = longest_repeated_suffix(tokens[:count])
        assert automaton.matches()[:1] == ([(length, end)] if length else [])
    assert automaton.num_states <= 2 * len(tokens)


def test_sam_copies_what_followed_the_first_occurrence() -> None:
    policy = SamDecoding(match_length=2, max_tokens=3, fallback=Fallback(4))
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    draft = policy.begin().choose(view(tokens))
    assert isinstance(draft, Draft)
    assert (draft.candidates, draft.match_length) == (((3, 4, 5),), 2)
    assert policy.begin().choose(view([1, 2, 3])) == NeuralWish(max_tokens=4, reason="no_match")


def test_sam_takes_a_shorter_suffix_whose_continuation_is_whole() -> None:
    """(1, 2, 3) last ended 2 tokens ago; (2, 3) also occurred at the beginning."""
    policy = SamDecoding(match_length=2, max_tokens=4)
    tokens = [2, 3, 7, 8, 9, 4, 1, 2, 3, 1, 2, 3]
    draft = policy.begin().choose(view(tokens))
    assert isinstance(draft, Draft)
    assert (draft.candidates, draft.match_length) == (((7, 8, 9, 4),), 2)


# RASD


def test_rasd_keeps_what_the_drafter_considers_and_fuses_it() -> None:
    drafted = Draft(source="neural", candidates=((5, 6), (7,)))
    found = fused(((5, 6, 8), (9, 9)), drafted, max_nodes=5)
    assert found.source == "merged"
    assert found.candidates == ((5, 6, 8), (7,)), "9 is nothing that the drafter considers"
    assert fused(((9,),), drafted, max_nodes=5) == drafted
    assert fused(((5, 6, 8),), drafted, max_nodes=4).candidates == ((5, 6, 8),)


def test_rasd_asks_the_drafter_at_every_step() -> None:
    tokens = [1, 2, 3, 4, 1, 2, 3]
    policy = Rasd(num_speculative_tokens=5, max_nodes=24)
    wish = policy.choose(view(tokens, indexed(tokens, 3)))
    assert isinstance(wish, NeuralWish)
    assert wish.finish(Draft(source="neural", candidates=((4, 8),))).candidates == (
        (4, 8),
        (4, 1, 2, 3),
    )
    assert wish.finish(Draft()) == Draft()


def test_leaf_paths_undo_a_merge() -> None:
    candidates = ((1, 2, 3), (1, 4), (5,))
    assert leaf_paths(merge_candidates(0, candidates, 99)) == ((1, 2, 3), (1, 4), (5,))
    assert leaf_paths(merge_candidates(0, (), 9)) == ()


# Lookahead decoding


def successor(token: int) -> int:
    """A verifier whose next token depends on the last one only."""
    return (3 * token + 1) % 11


def lookahead_pass(chooser: LookaheadChooser, tokens: list[int]) -> Draft:
    """One step of that verifier: choose, verify all rows, tell the chooser."""
    draft = chooser.choose(view(tokens))
    assert isinstance(draft, Draft)
    tree = merge_candidates(tokens[-1], draft.candidates, 999)
    chooser.observe(
        VerifiedStep(
            record=step(1).record,
            tree=tree,
            next_ids=[successor(token) for token in tree.token_ids],
        )
    )
    return draft


def test_lookahead_window_is_a_tree_of_columns() -> None:
    chooser = LookaheadChooser(Lookahead(guess_tokens=2, window=3, max_guesses=2))
    assert lookahead_pass(chooser, [4, 5, 6]).candidates == ((4,), (4, 5), (4, 5, 6))
    assert chooser.levels == [[4, 5, 6], [successor(token) for token in (4, 5, 6)]]
    first = successor(4)
    assert lookahead_pass(chooser, [6]).candidates[0] == (4, first)


def test_a_full_window_moves_and_fills_the_pool() -> None:
    """Every column yields the n-gram that this verifier would write, so guesses are right."""
    chooser = LookaheadChooser(Lookahead(guess_tokens=2, window=3, max_guesses=2))
    for _ in range(2):
        lookahead_pass(chooser, [4, 5, 6])
    a, b = successor(4), successor(successor(4))
    assert chooser.pool.of(4) == [(a, b)]
    assert chooser.levels[0] == [a, successor(5), successor(6)]
    guessed = lookahead_pass(chooser, [4])
    assert guessed.candidates[0] == (a, b)


def test_pool_forgets_the_least_recently_used() -> None:
    pool = NGramPool(2)
    for ngram in ((1,), (2,), (1,), (3,)):
        pool.add(0, ngram)
    assert pool.of(0) == [(3,), (1,)]
    assert pool.of(9) == []
