"""Training of the copy-intent probe: where to read it, which weight, which threshold.

1. Prompts are split into training and validation prompts; never tokens of one prompt.
2. Sweep: at every layer and both sites, for both label shifts, one logistic regression on a part of
   the rows (SwitchSD's Figure 5).
3. The best few points are fitted again on all rows with several penalties; validation F1 chooses
   point, shift, penalty and threshold (Figure 6 shows the chosen one).

No class weights, L2 penalty, LBFGS, as stated in ``fit_logistic``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.training.capture import NO_LABEL, CapturedStates, Point
from drafters.training.logistic import Threshold, auc, best_threshold, fit_logistic
from engine.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTrainingConfig:
    """How a probe is trained; the amount of data is the caller's."""

    validation_share: float = 0.2
    """Share of the prompts that choose layer, site, shift, penalty and threshold."""
    sweep_penalty: float = 1e-3
    """L2 penalty in the sweep over all layers."""
    penalties: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    """L2 penalties tried at the best points."""
    num_finalists: int = 3
    """Points of the sweep that are fitted again on all rows."""
    seed: int = 0
    """Seed of the split and of the rows drawn for the sweep."""

    def __post_init__(self) -> None:
        if not 0.0 < self.validation_share < 1.0:
            raise ValueError(
                f"validation_share must be between 0 and 1, not {self.validation_share}"
            )
        if not self.penalties or min(self.penalties) < 0 or self.sweep_penalty < 0:
            raise ValueError("penalties must be numbers of at least 0, and at least one")
        if self.num_finalists < 1:
            raise ValueError(f"num_finalists must be at least 1, not {self.num_finalists}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A fitted probe at one point and its quality on the validation prompts."""

    point: Point
    label_shift: int
    penalty: float
    weight: Tensor
    auc: float
    threshold: Threshold

    def probe(self, model_id: str) -> Probe:
        """The candidate as it is shipped."""
        layer, site = self.point
        return Probe(
            weight=self.weight,
            threshold=self.threshold.value,
            layer=layer,
            site=site,
            model_id=model_id,
            label_shift=self.label_shift,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeQuality:
    """How a probe does on labelled rows; the threshold is the probe's own."""

    num_rows: int
    positive_share: float
    auc: float
    f1: float
    precision: float
    recall: float
    benefit_auc: float
    """Of the score as a predictor of ``BENEFIT_TOKENS`` or more copied tokens, given a match."""
    benefit_rows: int
    """Rows with a match."""


BENEFIT_TOKENS = 3
"""Accepted tokens from which a copy is said to have paid: more than a plain step or the shipped
drafter's chains bring on average."""


def split_prompts(num_prompts: int, config: ProbeTrainingConfig) -> Tensor:
    """[num_prompts] bool: the validation prompts. Raises ``ValueError`` when one side is empty."""
    count = round(num_prompts * config.validation_share)
    if not 0 < count < num_prompts:
        raise ValueError(
            f"{num_prompts} prompts cannot be split into training and validation prompts: give more"
        )
    order = torch.randperm(num_prompts, generator=torch.Generator().manual_seed(config.seed))
    chosen = torch.zeros(num_prompts, dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen


def sweep(
    captured: CapturedStates,
    validation: Tensor,
    config: ProbeTrainingConfig,
    progress: Callable[[int], None],
) -> list[Candidate]:
    """One candidate for every captured point and label shift."""
    found = []
    for place in range(len(captured.points)):
        for shift in (0, 1):
            found += fit_point(captured, place, shift, validation, (config.sweep_penalty,))
        progress(1)
    return found


def finalists(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The ``count`` candidates with the highest validation F1, best first."""
    return sorted(candidates, key=lambda candidate: -candidate.threshold.f1)[:count]


def refine(
    captured: CapturedStates,
    chosen: Sequence[Candidate],
    validation: Tensor,
    config: ProbeTrainingConfig,
    progress: Callable[[int], None],
) -> list[Candidate]:
    """The chosen candidates fitted again on ``captured``, once per penalty; best F1 first."""
    found = []
    for candidate in chosen:
        place = captured.points.index(candidate.point)
        found += fit_point(captured, place, candidate.label_shift, validation, config.penalties)
        progress(1)
    return finalists(found, len(found))


def fit_point(
    captured: CapturedStates,
    place: int,
    shift: int,
    validation: Tensor,
    penalties: Sequence[float],
) -> list[Candidate]:
    """Candidates at ``captured.points[place]``, one per penalty."""
    labels = captured.labels[shift]
    held_out = validation[captured.transcripts]
    fit_rows, check_rows = (
        ((labels != NO_LABEL) & side).nonzero()[:, 0] for side in (~held_out, held_out)
    )
    states, targets = captured.states[place], labels.float()
    fit_states, check_states = states[fit_rows].float(), states[check_rows].float()
    found = []
    for penalty in penalties:
        weight = fit_logistic(fit_states, targets[fit_rows], penalty=penalty)
        scores = torch.sigmoid(check_states @ weight)
        found.append(
            Candidate(
                point=captured.points[place],
                label_shift=shift,
                penalty=penalty,
                weight=weight,
                auc=auc(scores, targets[check_rows]),
                threshold=best_threshold(scores, targets[check_rows]),
            )
        )
    return found


def labelled_scores(
    probe: Probe, captured: CapturedStates, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scores and labels [n] float32 of the rows (bool mask, all by default) that have a label."""
    labels = captured.labels[probe.label_shift]
    kept = labels != NO_LABEL if rows is None else (labels != NO_LABEL) & rows
    place = captured.points.index((probe.layer, probe.site))
    return probe.score(captured.states[place][kept]), labels[kept].float()


def quality(probe: Probe, captured: CapturedStates, rows: Tensor | None = None) -> ProbeQuality:
    """Quality on the labelled rows (bool mask, all by default), at the probe's threshold."""
    scores, labels = labelled_scores(probe, captured, rows)
    flagged, positive = scores >= probe.threshold, labels > 0.5
    hits = float((flagged & positive).sum())
    precision = hits / max(float(flagged.sum()), 1.0)
    recall = hits / max(float(positive.sum()), 1.0)
    matched = captured.gains >= 0 if rows is None else (captured.gains >= 0) & rows
    place = captured.points.index((probe.layer, probe.site))
    copied = captured.gains[matched] >= BENEFIT_TOKENS
    return ProbeQuality(
        num_rows=len(labels),
        positive_share=float(positive.float().mean()),
        auc=auc(scores, labels),
        f1=2 * precision * recall / max(precision + recall, 1e-12),
        precision=precision,
        recall=recall,
        benefit_auc=auc(probe.score(captured.states[place][matched]), copied.float()),
        benefit_rows=int(matched.sum()),
    )
