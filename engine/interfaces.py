"""The protocols at the engine's boundaries: what a model sees, what a drafter offers.

The engine knows these protocols only; concrete drafters live to its right in the folder chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from engine.block import RowLayout
    from engine.kv_cache import KVCache
    from engine.records import Choice, CopyIndexShape, Draft, SequenceView, VerifiedStep


class Site(Enum):
    """Where in a decoder layer a hidden state is read."""

    ATTENTION = "attention"
    """Residual stream after the attention sub-block was added."""
    MLP = "mlp"
    """Residual stream after the MLP sub-block was added."""


class TopTokens(NamedTuple):
    """Arg-max of the vocabulary per row; ties go to the lowest id."""

    values: Tensor
    """[L] largest logit."""
    ids: Tensor
    """[L] int64 global token id of it."""
    runner_up: Tensor
    """[L] second largest logit: equal to ``values`` on an exact tie."""


class FusedTop(Protocol):
    """Final norm, vocabulary projection and arg-max in one kernel."""

    def __call__(self, hidden_LH: Tensor) -> TopTokens:
        """[L, H] -> the best tokens of the local vocabulary, with global ids."""
        ...

    def top_and_logits(self, hidden_LH: Tensor, rows: Sequence[int]) -> tuple[TopTokens, Tensor]:
        """The same, and the local logits [len(rows), V] of some rows."""
        ...


class StepContext(Protocol):
    """What one forward pass needs beside the hidden states."""

    @property
    def positions(self) -> Tensor:
        """[R] int64 absolute position of every row."""
        ...

    @property
    def layout(self) -> RowLayout:
        """Which keys every row may see."""
        ...

    @property
    def kv(self) -> KVCache:
        """Committed keys and values, and this step's scratch."""
        ...

    def attend(
        self, layer_index: int, query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor
    ) -> Tensor:
        """Write the new keys and values to the scratch and attend: returns [R, Q, D]."""
        ...

    def observe(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Show the residual stream of a layer to whoever reads it (the probe, training)."""
        ...


class NeuralDrafter(Protocol):
    """A drafter with state per request: what it has read of a context it need not read again."""

    def draft(self, view: SequenceView) -> Draft:
        """Propose continuations of the pending token; an empty draft is allowed."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended: drop its state. An unknown id is ignored."""
        ...


class BatchDrafter(Protocol):
    """A neural drafter as the engine asks it: for all sequences that wish for a draft at once."""

    def draft_batch(self, views: Sequence[SequenceView]) -> list[Draft]:
        """One draft per view; empty ones are allowed."""
        ...

    def link_counts(self) -> Mapping[str, int]:
        """What happened to questions and replies, by name; nothing without a link."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended: drop its state. An unknown id is ignored."""
        ...


class Chooser(Protocol):
    """Chooses, at each step of one request, who proposes."""

    def choose(self, view: SequenceView) -> Choice:
        """A draft of copies, the wish for a neural draft, or an empty draft: a plain step."""
        ...

    def observe(self, step: VerifiedStep) -> None:
        """Learn what became of the last choice."""
        ...


class SwitchingPolicy(Protocol):
    """A method as it was configured; every request gets a chooser of its own."""

    @property
    def name(self) -> str:
        """The method's name as users write it."""
        ...

    @property
    def copy_index(self) -> CopyIndexShape:
        """What the copy index must hold for this policy."""
        ...

    def begin(self) -> Chooser:
        """The chooser of a new request."""
        ...
