"""SwitchSD+: the option with the most expected tokens per expected time, copies rated by a gate.

Beyond SwitchSD (arXiv 2609.20186), whose gate asks "does the verifier mean to copy", this one asks
"what will this copy bring": a learned gate (``engine/gate.py``) rates every token that could be
copied, from matches of one token on, and the step goes plain, copies, drafts neurally or verifies
both in one trie, whichever brings the most expected tokens per expected time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from engine.candidates import num_equal
from engine.copy_source import MatchRule
from engine.gate import Gate, logit
from engine.gate_features import CopyCalibration, RecentCopies, Situation
from engine.interfaces import Chooser
from engine.outlook import Outlook
from engine.policies.options import best_option, copy_draft, merged_draft
from engine.rated_copies import MAX_NODES, CopyRater, RatedCopies
from engine.records import Choice, CopyIndexShape, Draft, NeuralWish, SequenceView, VerifiedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSDPlus:
    """The gate and what it may choose from."""

    gate: Gate
    rule: MatchRule = field(default_factory=MatchRule)
    num_speculative_tokens: int = 0
    """Longest neural draft; 0: there is no drafter."""
    name: str = "switch_sd_plus"

    @property
    def copy_index(self) -> CopyIndexShape:
        """Matches only: continuations are read from the context."""
        return CopyIndexShape(
            match_lengths=(), max_tokens=self.rule.max_tokens, min_match=self.rule.match_length
        )

    def begin(self) -> Chooser:
        """With the request's own memory of its copies."""
        return GatedChooser(self)


@dataclass(slots=True)
class GatedChooser:
    """One request's."""

    policy: SwitchSDPlus
    recent: RecentCopies = field(default_factory=RecentCopies)
    _prompt_length: int | None = None
    _rated: RatedCopies = field(default_factory=RatedCopies)
    """What was rated in the last step, whatever was chosen."""
    _calibration: CopyCalibration = field(default_factory=CopyCalibration)
    """Shared by the configuration's requests."""

    def choose(self, view: SequenceView) -> Choice:
        """Rate the copies, compare the options, take the best."""
        assert view.outlook is not None, "the planner has an outlook for every step"
        if self._prompt_length is None:
            self._prompt_length = len(view.token_ids) - 1
        self._calibration = view.outlook.calibration
        copies = self._rated = self._rate(view, view.outlook)
        lookahead = min(self.policy.num_speculative_tokens, view.max_draft_tokens)
        best = best_option(copies, view.outlook, lookahead)
        match best.source:
            case "copy":
                return copy_draft(copies)
            case "neural":
                return NeuralWish(max_tokens=best.lookahead, reason="worth_most")
            case "merged":
                merge = partial(merged_draft, copies, view.outlook.lookahead.acceptance())
                return NeuralWish(max_tokens=best.lookahead, reason="worth_most", finish=merge)
        return Draft(reason="worth_most" if copies.candidates else "no_match")

    def observe(self, step: VerifiedStep) -> None:
        """How far the copies would have been right, also where they were not verified."""
        output, rated = step.output_ids, self._rated
        self._rated = RatedCopies()  # a step without room to draft rates nothing
        if not output or not rated.candidates:
            return
        right, path = max(
            (num_equal(candidate, output), index)
            for index, candidate in enumerate(rated.candidates)
        )
        self.recent.observe(right)
        self._calibration.observe_first(rated.first_token, is_right=right > 0)
        ratings = rated.ratings[path]
        # Behind the output's end nothing is known.
        for depth in range(1, min(right + 1, len(ratings), len(output))):
            promised = ratings[depth] / ratings[depth - 1]
            self._calibration.observe_further(promised, is_right=depth < right)

    def _rate(self, view: SequenceView, outlook: Outlook) -> RatedCopies:
        rule, score = self.policy.rule, view.probe_score
        matches = view.copies.matches(max_matches=rule.max_matches)
        if not matches:
            return RatedCopies()
        situation = Situation(
            token_ids=view.token_ids,
            prompt_length=self._prompt_length or 0,
            recent=self.recent,
            probe_logit=None if score is None else logit(score),
        )
        rater = CopyRater(
            self.policy.gate.model(has_probe=score is not None),
            max_tokens=min(rule.max_tokens, view.max_draft_tokens),
            max_nodes=MAX_NODES,
            min_probability=outlook.row_share,
            calibration=self._calibration,
        )
        return rater.rate(situation, matches)
