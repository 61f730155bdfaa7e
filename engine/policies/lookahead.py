"""Lookahead decoding (Fu et al. 2024, hao-ai-lab/LookaheadDecoding): n-grams from Jacobi windows.

Every pass carries a window of guesses beside the n-grams that may continue the pending token. The
window has N - 1 levels of W tokens: the token of level l in column j guesses the place j + l + 1
behind the pending token. It sees the pending token, the first level up to its column, and its own
column; that is a path, so the window is a tree like any draft: node (0, j) hangs from (0, j - 1),
node (l, j) from (l - 1, j). The verifier's arg-max behind the last level is the next level, and
every column then holds an n-gram for the pool.

Reproduced: window, pool (least recently used, G per first token), one pass for both, first levels
filled one per step. Different: guesses and window share one trie, so a right window token may be
accepted as well; the first level starts from the prompt's last tokens in place of random ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.interfaces import Chooser
from engine.records import Choice, CopyIndexShape, Draft, SequenceView, VerifiedStep

NGram = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead:
    """N is ``guess_tokens`` + 1."""

    guess_tokens: int = 4
    window: int = 7
    """W."""
    max_guesses: int = 7
    """G."""
    name: str = "lookahead"

    @property
    def copy_index(self) -> CopyIndexShape:
        """The pool is the index."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def begin(self) -> Chooser:
        """With an empty pool."""
        return LookaheadChooser(self)


@dataclass(slots=True)
class NGramPool:
    """What followed each token: at most ``size`` continuations, the newest last."""

    size: int
    _by_token: dict[int, OrderedDict[NGram, None]] = field(default_factory=dict)

    def add(self, token: int, continuation: NGram) -> None:
        """The oldest one goes."""
        known = self._by_token.setdefault(token, OrderedDict())
        known[continuation] = None
        known.move_to_end(continuation)
        if len(known) > self.size:
            known.popitem(last=False)

    def of(self, token: int) -> list[NGram]:
        """Newest first."""
        return list(reversed(self._by_token.get(token, ())))


class LookaheadChooser:
    """One request's window and pool."""

    def __init__(self, policy: Lookahead) -> None:
        self._policy = policy
        self.pool = NGramPool(policy.max_guesses)
        self.levels: list[list[int]] = []
        """First level first; each has a token per column."""

    def choose(self, view: SequenceView) -> Choice:
        """Guesses that continue the pending token, then the window's columns."""
        if not self.levels:
            self.levels.append(_first_level(view.token_ids, self._policy.window))
        columns = [self._path(column) for column in range(self._policy.window)]
        return Draft(source="copy", candidates=(*self.pool.of(view.token_ids[-1]), *columns))

    def _path(self, column: int) -> NGram:
        """From the pending token to the last level of a column."""
        own = (level[column] for level in self.levels[1:])
        return (*self.levels[0][: column + 1], *own)

    def observe(self, step: VerifiedStep) -> None:
        """Read the next level off the pass; a full window moves on and fills the pool."""
        if not self.levels:
            return
        columns, children = range(self._policy.window), step.tree.children()
        following = [_behind(self._path(column), children, step.next_ids) for column in columns]
        fresh = [
            self.levels[-1][column] if token is None else token
            for column, token in enumerate(following)
        ]
        if len(self.levels) == self._policy.guess_tokens:
            for column, token in enumerate(following):
                if token is not None:
                    first, *rest = (level[column] for level in self.levels)
                    self.pool.add(first, (*rest, token))
            self.levels.pop(0)
        self.levels.append(fresh)


def _first_level(token_ids: Sequence[int], window: int) -> list[int]:
    """The last tokens of the prompt, repeated where it is short."""
    known = list(token_ids[-window:])
    return [known[place % len(known)] for place in range(window)]


def _behind(
    path: NGram, children: Mapping[tuple[int, int], int], next_ids: Sequence[int]
) -> int | None:
    """The verifier's token behind a path of the tree; None where the tree was cut."""
    node: int | None = 0
    for token in path:
        node = None if node is None else children.get((node, token))
    return None if node is None else next_ids[node]
