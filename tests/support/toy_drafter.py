"""A neural drafter without a network: its drafts are a function of what it was shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from engine.records import Draft, SequenceView


@dataclass(slots=True, kw_only=True)
class ToyDrafter:
    """Continues with an affine sequence that starts at the sum of all tokens and features."""

    vocab_size: int
    num_tokens: int = 3
    num_calls: int = 0
    forgotten: list[str] = field(default_factory=list)

    def draft(self, view: SequenceView) -> Draft:
        self.num_calls += 1
        count = min(self.num_tokens, view.max_draft_tokens)
        candidate = self.continuation(view)[:count]
        return Draft(source="neural", candidates=(candidate,) if candidate else ())

    def continuation(self, view: SequenceView) -> tuple[int, ...]:
        """What it proposes, whatever it was told before: lost context would change it."""
        features = 0 if view.features is None else int(view.features.double().sum().round())
        start = _digest(view.token_ids) + features
        return tuple((start + 7 * index) % self.vocab_size for index in range(self.num_tokens))

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def _digest(token_ids: Sequence[int]) -> int:
    return sum((index + 1) * token for index, token in enumerate(token_ids))


@dataclass(slots=True)
class FeatureRecorder:
    """Notes what it saw last of every request and guesses the pending token, twice, and another."""

    seen: dict[str, tuple[list[int], Tensor]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)

    def draft(self, view: SequenceView) -> Draft:
        assert view.features is not None
        self.seen[view.request_id] = (list(view.token_ids), view.features.clone())
        last = view.token_ids[-1]
        return Draft(source="neural", candidates=((last, last), (max(0, last - 1),)))

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)
