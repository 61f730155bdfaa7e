"""Training-time test: chains of drafts from every row of a batch, unrolled side by side.

EAGLE-3 (arXiv 2503.01840, section 3.2). Step j of the chain at column t reads the feature of column
t + j, the verifier's at step 0 and the head's own later, with token t + 1 + j. It sees the keys of
step 0 up to column t, and its own chain's keys of steps 1 to j, which is what it will find in its
cache at run time.

Chains are given up one by one: a draft behind a rejected one is never looked at when decoding, so
it need not be computed. ``keep`` says which chains go on.

Legend: B sequences, T columns, L live chains, M most live chains of a sequence, H hidden, Q query
heads, K kv heads, D head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafters.eagle3_head import Eagle3Head
from drafters.training.batches import Batch
from engine.models.layers import wide_dtype


class DraftChains:
    """The unrolled passes over one batch, with the keys and values that they leave."""

    def __init__(self, head: Eagle3Head, batch: Batch, starts_L: Tensor) -> None:
        """``starts_L``: places b·T + t of the columns that chains start from, ascending."""
        self.rows_L = starts_L
        """Places of the chains that are still live."""
        self._head = head
        self._token_ids = batch.token_ids
        self._shape = batch.token_ids.shape
        self._steps = 0
        self._keys = self._values = torch.empty(0)
        self._own_keys: list[Tensor] = []
        self._own_values: list[Tensor] = []
        head.reserve_positions(self._shape[1] + 64)

    def first(self, features_RH: Tensor) -> Tensor:
        """[B·T, H], features of all columns -> [L, H], the layer's output where chains start."""
        batch, length = self._shape
        self._steps = 1
        output: Tensor = self._head(
            features_RH,
            self.moved(1),
            torch.arange(length).repeat(batch),
            self._attend_first,
            answered=self.rows_L,
        )
        return output

    def next(self, features_LH: Tensor) -> Tensor:
        """[L, H] -> [L, H]: every live chain's next step."""
        step = self._steps
        self._steps += 1
        positions_L = self.rows_L % self._shape[1] + step
        token_ids_L = self.moved(step + 1)[self.rows_L]
        output: Tensor = self._head(features_LH, token_ids_L, positions_L, self._attend_next)
        return output

    def keep(self, going_on_L: Tensor) -> None:
        """[L] bool: the chains that go on."""
        self.rows_L = self.rows_L[going_on_L]
        self._own_keys = [key[going_on_L] for key in self._own_keys]
        self._own_values = [value[going_on_L] for value in self._own_values]

    def moved(self, distance: int) -> Tensor:
        """[B·T]: the token ``distance`` columns on; 0 beyond the end."""
        moved_BT = torch.zeros_like(self._token_ids)
        moved_BT[:, : self._shape[1] - distance] = self._token_ids[:, distance:]
        return moved_BT.flatten()

    def _attend_first(self, query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
        heads = (*self._shape, *key_RKD.shape[1:])
        group = query_RQD.shape[1] // key_RKD.shape[1]
        self._keys, self._values = (
            rows.view(heads).transpose(1, 2).repeat_interleave(group, dim=1)
            for rows in (key_RKD, value_RKD)
        )
        return self._attend(query_RQD[self.rows_L])

    def _attend_next(self, query_LQD: Tensor, key_LKD: Tensor, value_LKD: Tensor) -> Tensor:
        group = query_LQD.shape[1] // key_LKD.shape[1]
        self._own_keys.append(key_LKD.repeat_interleave(group, dim=1))
        self._own_values.append(value_LKD.repeat_interleave(group, dim=1))
        return self._attend(query_LQD)

    def _attend(self, query_LQD: Tensor) -> Tensor:
        """Softmax over the columns up to each chain's start, then its own steps: [L, Q, D]."""
        places = _Places(self.rows_L, self._shape)
        query_BQMD = places.padded(query_LQD)
        shared = query_BQMD @ self._keys.transpose(2, 3) + places.future(query_LQD.dtype)
        own = [(query_BQMD * places.padded(key)).sum(-1, keepdim=True) for key in self._own_keys]
        scores = torch.cat([shared, *own], dim=-1) * query_LQD.shape[-1] ** -0.5
        weights = scores.softmax(-1, dtype=wide_dtype(scores.dtype)).to(scores.dtype)
        length = self._shape[1]
        output = weights[..., :length] @ self._values
        for step, value in enumerate(self._own_values):
            output = output + weights[..., length + step, None] * places.padded(value)
        return places.unpadded(output)


class _Places:
    """Where each live chain lies when every sequence has room for as many as the fullest one."""

    def __init__(self, rows_L: Tensor, shape: torch.Size) -> None:
        batch, self._length = shape
        self._sequence_L, self._column_L = rows_L // self._length, rows_L % self._length
        counts_B = torch.bincount(self._sequence_L, minlength=batch)
        first_B = counts_B.cumsum(0) - counts_B
        self._rank_L = torch.arange(len(rows_L)) - first_B[self._sequence_L]
        self._room = (batch, int(counts_B.max()))

    def padded(self, rows_LQD: Tensor) -> Tensor:
        """[L, Q, D] -> [B, Q, M, D]."""
        padded_BMQD = rows_LQD.new_zeros(*self._room, *rows_LQD.shape[1:])
        padded_BMQD[self._sequence_L, self._rank_L] = rows_LQD
        return padded_BMQD.transpose(1, 2)

    def unpadded(self, padded_BQMD: Tensor) -> Tensor:
        """[B, Q, M, D] -> [L, Q, D]."""
        return padded_BQMD[self._sequence_L, :, self._rank_L]

    def future(self, dtype: torch.dtype) -> Tensor:
        """[B, 1, M, T]: -inf at the columns behind a chain's start, 0 elsewhere."""
        last_BM = torch.full(self._room, self._length)
        last_BM[self._sequence_L, self._rank_L] = self._column_L
        hidden_BMT = torch.arange(self._length) > last_BM[..., None]
        bias = torch.zeros(hidden_BMT.shape, dtype=dtype)
        return bias.masked_fill_(hidden_BMT, -torch.inf)[:, None]
