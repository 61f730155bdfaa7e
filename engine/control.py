"""The one message per step: what every rank must commit and which rows come next.

Every rank could recompute the decision, and then a last-bit difference would make ranks disagree on
lengths and deadlock (the class of vLLM's pipeline-parallel speculation bugs). So the coordinator
encodes its verdict as one fixed-size int64 block and broadcasts it; nobody else decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.block import SequenceRows
from engine.candidates import TokenTree
from engine.kv_cache import Commit, KVCopy

_HEADER = 7
_PER_COMMIT, _PER_COPY, _PER_SEQUENCE = 3, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Accepted rows of the last step and the rows of the next; the same object on every rank."""

    step: int
    epoch: int = 0
    commits: tuple[Commit, ...] = ()
    copies: tuple[KVCopy, ...] = ()
    """Prefixes that new sequences take over, once everything is committed."""
    rows: tuple[SequenceRows, ...] = ()
    projection: int = 0
    """Which drafter's features are read, counted from 1; 0: none."""
    stop: bool = False


class ControlChannel(Protocol):
    """Carries verdicts from the coordinator to every rank."""

    def send(self, verdict: Verdict) -> None:
        """Coordinator: hand the verdict to all other ranks."""
        ...

    def receive(self) -> Verdict:
        """Other ranks: wait for the coordinator's verdict."""
        ...


def message_length(*, max_sequences: int, max_rows: int) -> int:
    """int64 words that hold any verdict of this engine."""
    per_sequence = _PER_COMMIT + _PER_COPY + _PER_SEQUENCE
    # A sequence that has just ended still commits, beside the one that takes its slot.
    return _HEADER + max_sequences * (per_sequence + _PER_COMMIT) + 3 * max_rows


def encode(verdict: Verdict, length: int) -> Tensor:
    """Pack a verdict into ``length`` int64 words."""
    words = [int(verdict.stop), verdict.step, verdict.epoch, verdict.projection]
    words += [len(verdict.commits), len(verdict.copies), len(verdict.rows)]
    for commit in verdict.commits:
        words += [commit.slot, commit.start_length, len(commit.rows), *commit.rows]
    for copy in verdict.copies:
        words += [copy.source, copy.target, copy.length]
    for rows in verdict.rows:
        tree = rows.tree
        wants = int(rows.wants_all) + 2 * int(rows.wants_logits)
        words += [rows.slot, rows.committed_length, wants, len(tree.token_ids)]
        words += [*tree.token_ids, *tree.parents]
    assert len(words) <= length, f"a verdict of {len(words)} words exceeds the message of {length}"
    message = torch.zeros(length, dtype=torch.int64)
    message[: len(words)] = torch.tensor(words)
    return message


def decode(message: Tensor) -> Verdict:
    """Unpack what :func:`encode` packed."""
    words = iter(message.tolist())
    stop, step, epoch, projection, *counts = _take(words, _HEADER)
    num_commits, num_copies, num_sequences = counts
    commits = tuple(_decode_commit(words) for _ in range(num_commits))
    copies = tuple(_decode_copy(words) for _ in range(num_copies))
    rows = tuple(_decode_rows(words) for _ in range(num_sequences))
    return Verdict(
        step=step,
        epoch=epoch,
        commits=commits,
        copies=copies,
        rows=rows,
        projection=projection,
        stop=bool(stop),
    )


def _decode_commit(words: Iterator[int]) -> Commit:
    slot, start_length, count = _take(words, _PER_COMMIT)
    return Commit(slot, start_length, tuple(_take(words, count)))


def _decode_copy(words: Iterator[int]) -> KVCopy:
    source, target, length = _take(words, _PER_COPY)
    return KVCopy(source=source, target=target, length=length)


def _decode_rows(words: Iterator[int]) -> SequenceRows:
    slot, committed_length, wants, count = _take(words, _PER_SEQUENCE)
    tree = TokenTree(tuple(_take(words, count)), tuple(_take(words, count)))
    return SequenceRows(slot, committed_length, tree, bool(wants & 1), bool(wants & 2))


def _take(words: Iterator[int], count: int) -> Sequence[int]:
    return [next(words) for _ in range(count)]
