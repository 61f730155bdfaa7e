"""Choose and draft: the rows of every decoding sequence for one step.

Each sequence's policy chooses; all who wish for a neural draft are asked for together; then rows
are shared out among the drafts by what they are expected to bring.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, replace

from engine.candidates import TokenTree, chain, merge_candidates, num_equal
from engine.draft_economy import DraftEconomy
from engine.outlook import Outlook
from engine.records import Draft, NeuralWish, SequenceView, StepRecord
from engine.row_budget import (
    AcceptanceEstimate,
    RatedTree,
    given_probabilities,
    worthwhile_rows,
)
from engine.sequence import Sequence
from engine.speculation import SpeculationConfig
from engine.step_time import StepTimeTable


@dataclass(slots=True)
class _Wish:
    """A sequence that wants a neural draft."""

    sequence: Sequence
    view: SequenceView
    wish: NeuralWish


class StepPlanner:
    """Keeps what drafts cost and bring; acceptance is learned per configuration."""

    def __init__(
        self, step_times: StepTimeTable | None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``clock`` counts seconds: what drafts cost is read from it."""
        self.step_times = step_times
        self._clock = clock
        self._economies: dict[SpeculationConfig, DraftEconomy] = {}

    def trees(
        self, sequences: Sequence_[Sequence], *, max_rows: int, other_rows: int
    ) -> list[TokenTree]:
        """One tree per decoding sequence, ``max_rows`` rows in all; sets the sequences' drafts.

        ``other_rows`` are prompt rows of the same step.
        """
        self._choose(sequences, other_rows)
        rated = self._rated_trees(sequences, max_rows)
        trees = self._within_budget(sequences, rated, other_rows)
        for sequence, tree in zip(sequences, trees, strict=True):
            self._note(sequence, tree)
        return trees

    def observe(self, sequence: Sequence, record: StepRecord) -> None:
        """Learn from a step's verified draft."""
        self._observe_lookahead(sequence, record)
        if sequence.draft.source != "plain" and record.drafted:
            self._estimate(sequence).observe(
                sequence.draft, accepted=record.accepted, deepest=record.drafted
            )

    def _observe_lookahead(self, sequence: Sequence, record: StepRecord) -> None:
        """How far the drafter was right; of a merged draft another candidate may have won.

        Where all of a short output was right, nothing is known of what was drafted behind it.
        """
        if not sequence.neural_asked or not record.output:
            return
        accepted = num_equal(sequence.neural_tokens, sequence.token_ids[-record.output :])
        known = record.output if accepted == record.output else sequence.neural_asked
        self._economy(sequence.drafting.speculation).lookahead.observe(
            asked=min(sequence.neural_asked, known),
            drafted=len(sequence.neural_tokens),
            accepted=accepted,
        )

    def _choose(self, sequences: Sequence_[Sequence], other_rows: int) -> None:
        wishes: list[_Wish] = []
        for sequence in sequences:
            started = self._clock()
            view = sequence.view(self._outlook(sequence, other_rows, len(sequences)))
            choice = _choice(sequence, view)
            if isinstance(choice, NeuralWish):
                limit = min(view.max_draft_tokens, choice.max_tokens)
                wishes.append(_Wish(sequence, replace(view, max_draft_tokens=limit), choice))
                choice = Draft(reason=choice.reason)
            sequence.draft, sequence.drafter_calls, sequence.neural_asked = choice, 0, 0
            sequence.draft_ms = (self._clock() - started) * 1e3
        self._ask(wishes, other_rows + len(sequences) - len(wishes))

    def _outlook(self, sequence: Sequence, other_rows: int, num_sequences: int) -> Outlook:
        economy = self._economy(sequence.drafting.speculation)
        return Outlook(
            step_times=self.step_times,
            rows=other_rows + num_sequences,
            num_sequences=num_sequences,
            lookahead=economy.lookahead,
            calibration=economy.calibration,
        )

    def _ask(self, wishes: list[_Wish], other_rows: int) -> None:
        """Ask each drafter for all its drafts at once; configurations that share one go together.

        A step whose wishes do not pay goes on plain.
        """
        for speculation in dict.fromkeys(w.sequence.drafting.speculation for w in wishes):
            mine = [w for w in wishes if w.sequence.drafting.speculation == speculation]
            if self._pays(speculation, mine, other_rows + len(wishes) - len(mine)):
                self._ask_together(speculation, mine)
            else:
                for wish in mine:
                    wish.sequence.draft = wish.wish.finish(Draft(reason="too_slow"))

    def _pays(self, speculation: SpeculationConfig, wishes: list[_Wish], other_rows: int) -> bool:
        if speculation.row_budget != "auto" or self.step_times is None:
            return True
        return self._economy(speculation).pays(
            self.step_times,
            num_wishes=len(wishes),
            depth=max(wish.view.max_draft_tokens for wish in wishes),
            other_rows=other_rows,
        )

    def _ask_together(self, speculation: SpeculationConfig, wishes: list[_Wish]) -> None:
        drafter = wishes[0].sequence.drafting.drafter
        assert drafter is not None, "a policy wishes for drafts only where there is a drafter"
        started = self._clock()
        drafts = drafter.draft_batch([wish.view for wish in wishes])
        milliseconds = (self._clock() - started) * 1e3
        economy = self._economy(speculation)
        economy.observe(milliseconds, len(wishes))
        for wish, draft in zip(wishes, drafts, strict=True):
            asked, drafted = wish.view.max_draft_tokens, draft.candidates[:1]
            wish.sequence.neural_asked = asked
            wish.sequence.neural_tokens = drafted[0] if drafted else ()
            economy.lookahead.observe_time(
                milliseconds / len(wishes), len(wish.sequence.neural_tokens)
            )
            wish.sequence.draft = _answered(draft, wish.wish)
            wish.sequence.drafter_calls = 1
            wish.sequence.draft_ms += milliseconds / len(wishes)

    def _rated_trees(self, sequences: Sequence_[Sequence], max_rows: int) -> list[RatedTree]:
        """Whole drafts as tries; each leaves the later ones their pending token's row."""
        rated, free = [], max_rows
        for index, sequence in enumerate(sequences):
            reserved = len(sequences) - index - 1
            tree = _whole_tree(sequence, free - reserved)
            free -= len(tree.token_ids)
            rated.append(RatedTree(tree, self._probabilities(sequence, tree)))
        return rated

    def _probabilities(self, sequence: Sequence, tree: TokenTree) -> list[float]:
        draft = sequence.draft
        if draft.probabilities:
            return given_probabilities(draft, tree)
        return self._estimate(sequence).node_probabilities(draft, tree)

    def _within_budget(
        self, sequences: Sequence_[Sequence], rated: list[RatedTree], other_rows: int
    ) -> list[TokenTree]:
        """Only trees under the automatic budget are cut; the others' rows run in any case."""
        trees = [one.tree for one in rated]
        if self.step_times is None:
            return trees
        cut = [i for i, s in enumerate(sequences) if s.drafting.speculation.row_budget == "auto"]
        if all(len(trees[index].token_ids) == 1 for index in cut):
            return trees
        others = sum(len(tree.token_ids) for i, tree in enumerate(trees) if i not in set(cut))
        kept = worthwhile_rows(
            [rated[index] for index in cut], self.step_times, other_rows=other_rows + others
        )
        for index, tree in zip(cut, kept, strict=True):
            trees[index] = tree
        return trees

    def _note(self, sequence: Sequence, tree: TokenTree) -> None:
        """What is verified of a draft; one that is not worth a row gets another chance some day."""
        draft = sequence.draft
        if draft.candidates and len(tree.token_ids) == 1:
            self._estimate(sequence).relax(draft)
            sequence.draft = Draft(reason="too_costly")
        else:
            sequence.draft = replace(draft, candidates=(), probabilities=())

    def _economy(self, speculation: SpeculationConfig) -> DraftEconomy:
        if speculation not in self._economies:
            self._economies[speculation] = DraftEconomy(AcceptanceEstimate())
        return self._economies[speculation]

    def _estimate(self, sequence: Sequence) -> AcceptanceEstimate:
        return self._economy(sequence.drafting.speculation).estimate


def _choice(sequence: Sequence, view: SequenceView) -> Draft | NeuralWish:
    if view.max_draft_tokens < 1:
        return Draft(reason="no_room")
    return sequence.chooser.choose(view)


def _answered(draft: Draft, wish: NeuralWish) -> Draft:
    """A drafter that answers with nothing was unsure of every token."""
    finished = wish.finish(draft)
    if finished.candidates:
        return replace(finished, reason=wish.reason)
    return Draft(reason="unsure" if draft.source == "neural" else "no_reply")


def _whole_tree(sequence: Sequence, max_rows: int) -> TokenTree:
    """The pending token and every candidate, as far as they can still become output."""
    pending, draft = sequence.token_ids[-1], sequence.draft
    if not draft.candidates:
        return chain([pending])
    room = sequence.remaining_tokens - 1
    candidates = [candidate[:room] for candidate in draft.candidates]
    if sequence.sampler is not None:
        valid = sequence.sampler.count_valid
        candidates = [candidate[: valid(candidate)] for candidate in candidates]
    budget = sequence.drafting.speculation.row_budget
    limit = min(max_rows, budget) if isinstance(budget, int) else max_rows
    return merge_candidates(pending, candidates, limit)
