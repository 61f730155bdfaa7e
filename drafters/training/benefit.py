"""Recorded answers as the gate of SwitchSD+ meets them: what it sees at a step, what came true.

Every answer is walked through token by token. Where the context's last token or more occurred
before, the branches of the copy trie get their features (``engine/gate_features.py``) and the
truth: which branch was right, and along the right path which deeper nodes were. How the request's
copies did lately depends on where its steps began, so a walk in steps of random length goes with
it: the steps sometimes take the whole copy and sometimes less, as steps with other drafts do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from drafters.match_index import MatchIndex
from drafters.training.capture import Transcript
from drafters.training.probe import BENEFIT_TOKENS
from engine.candidates import num_equal
from engine.copy_source import CopyMatch, MatchRule
from engine.copy_trie import Branch, branches
from engine.gate_features import (
    FIRST_FEATURES,
    FURTHER_FEATURES,
    RecentCopies,
    Situation,
    first_features,
    node_features,
)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

NOTHING_COMMON = (0.0, 0.0, 0.0, 0.0)
"""Before the first level's models are fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStep:
    """A place in an answer where something could be copied."""

    transcript: int
    row: int
    """The captured row NA of the step, counted from the answer's first (capture.py)."""
    situation: Situation
    """Without the probe."""
    matches: tuple[CopyMatch, ...]
    future: tuple[int, ...]
    """Tokens that followed, as many as may be copied."""
    gained: int
    """Tokens that the copies would have gained."""
    is_visited: bool
    """Whether a step of the random walk began here."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GateData:
    """S steps with a match, B first-level branches, N deeper nodes."""

    transcripts: Integers
    """[S]: index of the step's transcript."""
    rows: Integers
    """[S]: the captured row NA of the step, counted from the answer's first (capture.py)."""
    accepted: Integers
    """[S]: tokens that the copies would have gained."""
    is_visited: Flags
    """[S]: whether a step of the random walk began there."""
    first: Floats
    """[B, F] without the probe."""
    first_right: Flags
    """[B]."""
    first_step: Integers
    """[B]: index of the branch's step."""
    recent_tokens: Floats
    """[S]: how many tokens the request's copies brought lately."""
    further: Floats
    """[N, G]; what the nodes below a first-level branch have in common is still 0."""
    further_right: Flags
    """[N]."""
    further_branch: Integers
    """[N]: index of the first-level branch above."""

    @property
    def pays(self) -> Flags:
        """[S]: whether the step's copies would have gained ``BENEFIT_TOKENS`` or more."""
        found: Flags = self.accepted >= BENEFIT_TOKENS
        return found

    def of_branches(self, steps: Flags) -> Flags:
        """[S] -> [B]."""
        found: Flags = steps[self.first_step]
        return found

    def of_nodes(self, steps: Flags) -> Flags:
        """[S] -> [N]."""
        found: Flags = self.of_branches(steps)[self.further_branch]
        return found


@dataclass(slots=True)
class _Collector:
    """Grows while answers are walked through."""

    rule: MatchRule
    transcripts: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    is_visited: list[bool] = field(default_factory=list)
    first: list[list[float]] = field(default_factory=list)
    first_right: list[bool] = field(default_factory=list)
    first_step: list[int] = field(default_factory=list)
    recent_tokens: list[float] = field(default_factory=list)
    further: list[list[float]] = field(default_factory=list)
    further_right: list[bool] = field(default_factory=list)
    further_branch: list[int] = field(default_factory=list)

    def add(self, step: CopyStep) -> None:
        """Note the first level and the nodes along the right path."""
        situation, future = step.situation, step.future
        found = branches(situation.token_ids, step.matches, 0)
        start = len(self.first)
        self.first += first_features(situation, found)
        self.first_right += [branch.token_id == future[0] for branch in found]
        self.first_step += [len(self.accepted)] * len(found)
        for depth in range(1, step.gained + 1):
            right = _right(found, future[depth - 1])
            if depth == 1:
                above = start + found.index(right)
            if depth == min(self.rule.max_tokens, len(future)):
                break
            found = branches(situation.token_ids, right.matches, depth)
            self._add_nodes(step, found, depth, above)
        self.recent_tokens.append(situation.recent.tokens)
        self.accepted.append(step.gained)
        self.transcripts.append(step.transcript)
        self.rows.append(step.row)
        self.is_visited.append(step.is_visited)

    def _add_nodes(self, step: CopyStep, found: Sequence[Branch], depth: int, above: int) -> None:
        for branch in found:
            features = [*node_features(branch, found, depth), *NOTHING_COMMON]
            self.further.append(features)
            self.further_right.append(branch.token_id == step.future[depth])
            self.further_branch.append(above)

    def data(self) -> GateData:
        return GateData(
            transcripts=np.array(self.transcripts, dtype=np.int64),
            rows=np.array(self.rows, dtype=np.int64),
            accepted=np.array(self.accepted, dtype=np.int64),
            is_visited=np.array(self.is_visited, dtype=np.bool_),
            first=np.array(self.first).reshape(-1, len(FIRST_FEATURES)),
            first_right=np.array(self.first_right, dtype=np.bool_),
            first_step=np.array(self.first_step, dtype=np.int64),
            recent_tokens=np.array(self.recent_tokens, dtype=np.float64),
            further=np.array(self.further).reshape(-1, len(FURTHER_FEATURES)),
            further_right=np.array(self.further_right, dtype=np.bool_),
            further_branch=np.array(self.further_branch, dtype=np.int64),
        )


def gate_data(
    transcripts: Sequence[Transcript], *, seed: int, rule: MatchRule | None = None
) -> GateData:
    """All steps with a match of all answers; ``seed`` decides the lengths of the walk's steps."""
    collector = _Collector(rule or MatchRule())
    for step in copy_steps(transcripts, seed=seed, rule=collector.rule):
        collector.add(step)
    return collector.data()


def copy_steps(
    transcripts: Sequence[Transcript], *, seed: int, rule: MatchRule
) -> Iterator[CopyStep]:
    """The same steps one by one; a step's situation holds until the next is asked for."""
    random = Random(seed)
    for index, entry in enumerate(transcripts):
        yield from _walk(index, entry, random, rule)


def _walk(index: int, entry: Transcript, random: Random, rule: MatchRule) -> Iterator[CopyStep]:
    token_ids, num_prompt = entry.token_ids, len(entry.prompt_ids)
    match_index, recent, context = MatchIndex(rule.match_length), RecentCopies(), list[int]()
    next_visit = num_prompt + 1
    for end in range(1, len(token_ids)):
        context.append(token_ids[end - 1])
        match_index.grow(context)
        if end <= num_prompt:
            continue
        matches = match_index.matches(context, rule.max_matches)
        future, is_visited = token_ids[end : end + rule.max_tokens], end == next_visit
        gained = _gain(context, matches, future)
        if matches:
            yield CopyStep(
                transcript=index,
                row=end - num_prompt - 1,
                situation=Situation(token_ids=context, prompt_length=num_prompt, recent=recent),
                matches=matches,
                future=future,
                gained=gained,
                is_visited=is_visited,
            )
        if is_visited:
            taken = min(gained, random.choice((0, 1, 2, gained, gained, gained)))
            next_visit = end + 1 + taken
            if matches:
                recent.observe(min(gained, taken + 1))


def _gain(context: Sequence[int], matches: Sequence[CopyMatch], future: Sequence[int]) -> int:
    """Tokens of the future that the best of the continuations has."""
    spans = (slice(match.start, match.start + len(future)) for match in matches)
    return max((num_equal(context[span], future) for span in spans), default=0)


def _right(found: Sequence[Branch], token: int) -> Branch:
    return next(branch for branch in found if branch.token_id == token)
