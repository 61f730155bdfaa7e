"""Blocks for measuring step times: a pending token with siblings below it."""

from __future__ import annotations

from engine.block import SequenceRows
from engine.candidates import TokenTree
from engine.kv_cache import KVCache

CONTEXT = 256


def sibling_rows(num_rows: int, kv: KVCache, *, context: int = CONTEXT) -> tuple[SequenceRows, ...]:
    """Rows of one sequence behind ``context`` committed tokens, or what the cache holds."""
    tree = TokenTree((0,) * num_rows, (-1, *[0] * (num_rows - 1)))
    prefix = min(context, kv.max_length - 2)
    return (SequenceRows(0, prefix, tree, wants_all=True),)
