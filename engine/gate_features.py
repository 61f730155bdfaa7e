"""What the gate of SwitchSD+ looks at before it copies: one definition for use and training.

Per branch of the copy trie's first level: how long its match is and how much longer than the
others', how many occurrences agree on it, how old and where the newest of them is, how alike the
text before it is beyond the exact match, how well the request's copies did lately, and the probe.
Deeper nodes are only reached when everything above was right; few features tell then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import eq
from typing import NamedTuple

from engine.copy_trie import Branch

FIRST_FEATURES = (
    "match_length",
    "match_lead",
    "share",
    "distance",
    "from_prompt",
    "is_newest",
    "likeness",
    "occurrences",
    "branches",
    "recent_hits",
    "recent_tokens",
    "answer_length",
)
"""Features of a branch of the first level, in order; the probe's logit follows where there is
one."""

FURTHER_FEATURES = (
    "match_length",
    "depth",
    "share",
    "branches",
    "recent_tokens",
    "first_above",
    "first_below",
    "pays",
)
"""Features of a deeper node, in order: four of its own, then what all nodes below a first-level
branch have in common. ``first_above`` and ``first_below`` are the positive and the
negative part of the logit of its first-level branch (an unlikely branch that was right all the same
is a good one), ``pays`` the logit that the step's copies pay."""

LIKENESS_TOKENS = 32
"""Tokens before an occurrence that are compared place by place."""
_RECENT_WEIGHT = 0.2
_CALIBRATION_RATE = 0.03


@dataclass(slots=True)
class RecentCopies:
    """How the copies of a request did lately: moving averages."""

    hits: float = 0.5
    """Share of which a token was accepted."""
    tokens: float = 1.0
    """Tokens accepted."""

    def observe(self, accepted: int) -> None:
        """A copy was, or would have been, accepted for so many tokens."""
        self.hits += _RECENT_WEIGHT * ((accepted > 0) - self.hits)
        self.tokens += _RECENT_WEIGHT * (accepted - self.tokens)


@dataclass(slots=True)
class CopyCalibration:
    """How far the gate's logits are off where it is used: learned from what became of copies.

    Another model's answers, or another kind of text, copy longer or shorter runs than those that
    the gate was trained on.
    """

    first: float = 0.0
    """Added to logits of first tokens."""
    further: float = 0.0
    """Added to logits of further ones."""

    def observe_first(self, promised: float, *, is_right: bool) -> None:
        """A step's first token."""
        self.first += _CALIBRATION_RATE * (is_right - promised)

    def observe_further(self, promised: float, *, is_right: bool) -> None:
        """A token whose parent was right."""
        self.further += _CALIBRATION_RATE * (is_right - promised)


class Above(NamedTuple):
    """What the models of the first level said, for the nodes below."""

    first: float
    """Logit of the node's first-level branch."""
    pays: float
    """Logit that the step's copies pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is the same for all branches of a step."""

    token_ids: Sequence[int]
    """The context; the last one is the pending token."""
    prompt_length: int
    recent: RecentCopies
    probe_logit: float | None = None
    """None: there is no probe."""


def first_features(situation: Situation, found: Sequence[Branch]) -> list[list[float]]:
    """One row per branch, in the order of ``FIRST_FEATURES``, then the probe's logit."""
    starts = [branch.newest for branch in found]
    newest, total = max(starts), sum([len(branch.matches) for branch in found])
    lengths = [branch.length for branch in found]
    longest, second = (*sorted(lengths, reverse=True), 0)[:2]
    shared = _shared_features(situation, total=total, num_branches=len(found))
    return [
        [
            _log(length),
            math.log((1 + length) / (1 + (second if length == longest else longest))),
            len(branch.matches) / total,
            math.log1p(len(situation.token_ids) - start),
            float(start < situation.prompt_length),
            float(start == newest),
            _likeness(situation.token_ids, branch.matches[0].start),
            *shared,
        ]
        for branch, length, start in zip(found, lengths, starts, strict=True)
    ]


def _shared_features(situation: Situation, *, total: int, num_branches: int) -> list[float]:
    recent = situation.recent
    answer_length = len(situation.token_ids) - situation.prompt_length
    probe = () if situation.probe_logit is None else (situation.probe_logit,)
    return [
        math.log(total),
        math.log(num_branches),
        recent.hits,
        math.log1p(recent.tokens),
        math.log1p(max(answer_length, 0)),
        *probe,
    ]


def _likeness(token_ids: Sequence[int], start: int) -> float:
    """Share of the tokens before ``start`` that equal those before the context's end."""
    count = min(LIKENESS_TOKENS, start)
    old, new = token_ids[start - count : start], token_ids[len(token_ids) - count :]
    num_equal: int = sum(map(eq, old, new))
    return num_equal / LIKENESS_TOKENS


NodeFeatures = tuple[float, float, float, float]
"""The first of ``FURTHER_FEATURES``."""
CommonFeatures = tuple[float, float, float, float]
"""The last of them."""


def node_features(branch: Branch, siblings: Sequence[Branch], depth: int) -> NodeFeatures:
    """Of a node ``depth`` places behind the occurrences."""
    if len(siblings) == 1:
        return _log(branch.length + depth), _log(depth), 1.0, 0.0
    total = sum(len(sibling.matches) for sibling in siblings)
    share = len(branch.matches) / total
    return _log(branch.length + depth), _log(depth), share, _log(len(siblings))


def common_features(recent: RecentCopies, above: Above) -> CommonFeatures:
    """Of all nodes below a first-level branch."""
    first = above.first
    return math.log1p(recent.tokens), max(first, 0.0), max(-first, 0.0), above.pays


@cache
def _log(count: int) -> float:
    return math.log(count)
