"""How long a verifier pass takes: rows, context, batch and ranks to seconds.

A product of an [n, K] and a [K, N] matrix is bound by reading the weights or by arithmetic; a
p-norm (``overlap`` is p) joins the two, because a real kernel is a little slower than the larger
of both.
``memory_efficiency`` and ``matmul_efficiency`` are the shares of the data sheet's figures that
kernels reach. Attention reads keys and values and does arithmetic with ``attention_efficiency``;
``attention_launch`` is paid per attention kernel, ``layer_gap`` per layer for small kernels,
``step_gap`` once. Tensor-parallel ranks add two all-reduces per layer. Pipeline stages of one
sequence take turns, so their layers add up.

Everything here is modelled; ``machine.py`` says of each parameter whether it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.config import ModelConfig
from engine.step_time import StepTimeTable
from launch.plan.machine import Machine

TABLE_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 200, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the verifier lies on the machine's devices."""

    tensor_parallel: int = 1
    weight_bytes: float = 2.0
    """Per weight of the layers; the vocabulary head stays at two."""
    kv_bytes: float = 2.0
    """Per key or value element."""
    multiplies_8bit: bool = False
    """Whether products run at the 8-bit rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a pass by what they are spent on."""

    products: float
    attention: float
    all_reduce: float
    head: float
    gaps: float

    @property
    def total(self) -> float:
        """Of the pass."""
        return self.products + self.attention + self.all_reduce + self.head + self.gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """A verifier on a machine."""

    machine: Machine
    model: ModelConfig
    layout: Layout

    def cost(self, rows: float, *, context: float, batch: int = 1) -> StepCost:
        """A pass of ``rows`` rows for each of ``batch`` sequences of ``context`` tokens."""
        layers, total = self.model.num_layers, rows * batch
        return StepCost(
            products=layers * self._products(total),
            attention=layers * self._attention(rows, context, batch),
            all_reduce=layers * 2 * self._all_reduce(total),
            head=self._head(total),
            gaps=self.machine["step_gap"] + layers * self.machine["layer_gap"],
        )

    def table(self, *, context: float, batch: int = 1) -> StepTimeTable:
        """What the engine's planner takes: milliseconds by the rows of one sequence."""
        costs = [self.cost(rows, context=context, batch=batch).total for rows in TABLE_ROWS]
        return StepTimeTable(TABLE_ROWS, tuple(cost * 1e3 for cost in costs))

    def _products(self, rows: float) -> float:
        shape, ranks = self.model, self.layout.tensor_parallel
        queries = shape.query_size
        return (
            self._product(rows, shape.hidden_size, (queries + 2 * shape.kv_size) / ranks)
            + self._product(rows, queries / ranks, shape.hidden_size)
            + self._product(rows, shape.hidden_size, 2 * shape.intermediate_size / ranks)
            + self._product(rows, shape.intermediate_size / ranks, shape.hidden_size)
        )

    def _product(self, rows: float, inner: float, outer: float, *, is_head: bool = False) -> float:
        machine, layout = self.machine, self.layout
        weight_bytes = 2.0 if is_head else layout.weight_bytes
        moved = inner * outer * weight_bytes + rows * (inner + outer) * 2
        rate = machine["matmul_rate_8bit" if layout.multiplies_8bit else "matmul_rate"]
        memory = moved / (machine["memory_bandwidth"] * machine["memory_efficiency"])
        compute = 2 * inner * outer * rows / (rate * machine["matmul_efficiency"])
        return self._joined(memory, compute)

    def _joined(self, memory: float, compute: float) -> float:
        power = self.machine["overlap"]
        larger, smaller = max(memory, compute), min(memory, compute)
        return float(larger * (1.0 + (smaller / larger) ** power) ** (1.0 / power))

    def _attention(self, rows: float, context: float, batch: int) -> float:
        machine, shape, ranks = self.machine, self.model, self.layout.tensor_parallel
        heads = max(1.0, shape.num_kv_heads / ranks)
        kv_bytes = 2 * batch * context * heads * shape.head_dim * self.layout.kv_bytes
        memory = kv_bytes / (machine["memory_bandwidth"] * machine["memory_efficiency"])
        flops = 4 * rows * batch * context * shape.query_size / ranks
        compute = flops / (machine["matmul_rate"] * machine["attention_efficiency"])
        # Several rows take two kernels (prefix and tree) and a merge.
        launches = 2.5 if rows > 1 else 1.0
        return self._joined(memory, compute) + launches * machine["attention_launch"]

    def _all_reduce(self, rows: float) -> float:
        num_bytes = rows * self.model.hidden_size * 2
        return self.machine.all_reduce_seconds(num_bytes, self.layout.tensor_parallel)

    def _head(self, rows: float) -> float:
        shape = self.model
        vocabulary = shape.vocab_size / self.layout.tensor_parallel
        return self._product(rows, shape.hidden_size, vocabulary, is_head=True)
