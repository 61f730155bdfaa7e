"""SAM-Decoding (Hu et al. 2024, hyx1999/SAM-Decoding): copy behind the longest repeated suffix.

A suffix automaton over prompt and output finds the longest suffix that occurred before. From five
tokens on, what followed its first occurrence is drafted, 39 tokens; where the context ends before
that, a shorter suffix with an earlier occurrence is taken. Otherwise the fallback drafts. The
released code's second, static automaton over a corpus is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.interfaces import Chooser
from engine.policies.fallback import NO_DRAFTER, Fallback
from engine.records import Choice, CopyIndexShape, SequenceView, VerifiedStep, copied
from engine.suffix_automaton import SuffixAutomaton


@dataclass(frozen=True, slots=True, kw_only=True)
class SamDecoding:
    """One candidate."""

    match_length: int = 5
    max_tokens: int = 39
    fallback: Fallback = NO_DRAFTER
    name: str = "sam_decoding"

    @property
    def copy_index(self) -> CopyIndexShape:
        """The automaton is the index."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def begin(self) -> Chooser:
        """With an empty automaton."""
        return SamChooser(self)


@dataclass(slots=True)
class SamChooser:
    """One request's automaton; it catches up when it is asked."""

    policy: SamDecoding
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)

    def choose(self, view: SequenceView) -> Choice:
        """Copy behind the longest repeated suffix, else ask the fallback."""
        self.automaton.extend(view.token_ids[len(self.automaton) :])
        match = self._match(len(view.token_ids))
        if match is None:
            return self.policy.fallback.choose("no_match")
        length, end = match
        continuation = tuple(view.token_ids[end + 1 : end + 1 + self.policy.max_tokens])
        return copied((continuation,), match_length=length)

    def _match(self, num_tokens: int) -> tuple[int, int] | None:
        """(length, end) of the longest match with a whole continuation, else of the longest."""
        found = [one for one in self.automaton.matches() if one[0] >= self.policy.match_length]
        whole = (one for one in found if one[1] + self.policy.max_tokens < num_tokens)
        return next(whole, found[0] if found else None)

    def observe(self, step: VerifiedStep) -> None:
        """The tokens come with the next view."""
