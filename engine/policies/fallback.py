"""What a policy does when it does not copy: ask the neural drafter, or decode plainly."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records import Choice, Draft, NeuralWish, SwitchReason


@dataclass(frozen=True, slots=True)
class Fallback:
    """Neural drafts of at most ``num_tokens``; 0: there is no drafter."""

    num_tokens: int = 0

    def choose(self, reason: SwitchReason) -> Choice:
        """The wish for a draft, or a plain step; ``reason`` says why nothing was copied."""
        if self.num_tokens:
            return NeuralWish(max_tokens=self.num_tokens, reason=reason)
        return Draft(reason=reason)


NO_DRAFTER = Fallback()
