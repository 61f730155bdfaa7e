"""What policies share that look at the present step only: one chooser serves every request."""

from __future__ import annotations

from typing import Self

from engine.records import VerifiedStep


class Stateless:
    """Mixed into a policy that is its own chooser, because it remembers nothing."""

    __slots__ = ()

    def begin(self) -> Self:
        """Itself."""
        return self

    def observe(self, step: VerifiedStep) -> None:
        """Nothing is learned."""
