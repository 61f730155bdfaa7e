"""The whole training of a probe: prompts, answers, states, fits, held-out check, files.

``python -m launch.train probe`` runs it. Everything that decides is chosen on validation prompts of
the generated data; HumanEval is looked at once, at the end, to report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.progress import Progress

from drafters.assemble import assemble_engine
from drafters.training.answers import AnswerFile
from drafters.training.capture import (
    CapturedStates,
    Point,
    Transcript,
    capture_states,
    generate_transcripts,
)
from drafters.training.gate import MATCH_LENGTHS, GateReplay, choose_threshold, record_answers
from drafters.training.probe import (
    Candidate,
    ProbeTrainingConfig,
    finalists,
    refine,
    split_prompts,
    sweep,
)
from engine.config import EngineConfig
from engine.engine import SpeculativeEngine
from engine.interfaces import Site
from engine.models.decoder import Decoder
from engine.probe import Probe
from engine.weights import load_model
from launch.bench.workloads import HUMANEVAL, load_workload
from launch.data.copy_diversity import CopyPrompt, copy_diversity
from launch.progress import progress_bar, stage_progress
from parallel.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """What is trained on: the engine that answers, the data and the fit."""

    engine: EngineConfig
    training: ProbeTrainingConfig
    num_prompts: int = 1_000
    num_held_out: int = 164
    """HumanEval prompts in the final check."""
    max_tokens: int = 192
    """Longest answer."""
    sweep_rows: int = 40
    """Rows of each answer in the sweep over all layers."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "num_held_out", "max_tokens", "sweep_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.engine.tensor_parallel_size * self.engine.pipeline_parallel_size != 1:
            raise ValueError(
                "a probe is trained in one process: tensor and pipeline size must be 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The trained probe and everything that is reported about it."""

    probe: Probe
    """With gate thresholds."""
    gate: dict[int, tuple[GateReplay, GateReplay]]
    """Match length to (always open, as calibrated), replayed on the validation answers."""
    prompts: tuple[CopyPrompt, ...]
    transcripts: list[Transcript]
    validation: torch.Tensor
    """[prompts] bool."""
    swept: list[Candidate]
    refined: list[Candidate]
    captured: CapturedStates
    """All rows at the finalists' points."""
    held_out: CapturedStates
    """All rows of the HumanEval answers at the probe's point."""
    num_held_out_tokens: int


class ProbeTrainer:
    """Holds the loaded models while :meth:`run` goes through the stages."""

    def __init__(self, run: ProbeRun, answers: Path) -> None:
        """Load the engine and the model; raises ``ValueError`` for whatever does not fit.

        ``answers`` is the file that keeps generated answers for a repeated run.
        """
        self._settings = run
        self._answers = AnswerFile(answers, model_id=run.engine.model, max_tokens=run.max_tokens)
        self._prompts = copy_diversity(run.num_prompts, seed=run.training.seed)
        self._validation = split_prompts(run.num_prompts, run.training)
        self._engine: SpeculativeEngine = assemble_engine(run.engine, Mesh.single())
        self._held_out = load_workload(HUMANEVAL, self._engine.tokenizer, limit=run.num_held_out)
        self._model: Decoder = load_model(
            run.engine.model,
            dtype=torch.float32,
            mesh=Mesh.single(),
            max_model_len=run.engine.max_model_len,
        )
        self._rows = torch.Generator().manual_seed(run.training.seed)

    def run(self) -> ProbeResult:
        """Train; shows a progress bar per stage."""
        training = self._settings.training
        with progress_bar() as bar:
            chat = self._engine.tokenizer.chat
            prompt_ids = [tuple(chat(prompt.messages)) for prompt in self._prompts]
            transcripts = self._answer(bar, "answers", prompt_ids)
            swept = self._sweep(bar, transcripts)
            chosen = finalists(swept, training.num_finalists)
            points = tuple(dict.fromkeys(candidate.point for candidate in chosen))
            captured = self._capture(bar, "states at the best points", transcripts, points)
            fitted = stage_progress(bar, "fits at the best points", len(chosen))
            refined = refine(captured, chosen, self._validation, training, fitted)
            held_out_ids = [prompt.token_ids for prompt in self._held_out]
            held_out = self._answer(bar, "HumanEval answers", held_out_ids)
            held_out_states = self._capture(bar, "HumanEval states", held_out, (refined[0].point,))
        probe = refined[0].probe(self._settings.engine.model)
        gate = self._calibrate(probe, captured, transcripts)
        thresholds = {length: chosen.threshold for length, (_, chosen) in gate.items()}
        return ProbeResult(
            probe=replace(probe, gate_thresholds=thresholds),
            gate=gate,
            prompts=self._prompts,
            transcripts=transcripts,
            validation=self._validation,
            swept=swept,
            refined=refined,
            captured=captured,
            held_out=held_out_states,
            num_held_out_tokens=sum(len(entry.output_ids) for entry in held_out),
        )

    def _answer(
        self, bar: Progress, title: str, prompt_ids: Sequence[tuple[int, ...]]
    ) -> list[Transcript]:
        return generate_transcripts(
            self._engine,
            prompt_ids,
            self._answers,
            max_tokens=self._settings.max_tokens,
            progress=stage_progress(bar, title, len(prompt_ids)),
        )

    def _calibrate(
        self, probe: Probe, captured: CapturedStates, transcripts: list[Transcript]
    ) -> dict[int, tuple[GateReplay, GateReplay]]:
        held_out = {i: entry for i, entry in enumerate(transcripts) if self._validation[i]}
        return {
            length: choose_threshold(record_answers(probe, captured, held_out, length))
            for length in MATCH_LENGTHS
        }

    def _sweep(self, bar: Progress, transcripts: list[Transcript]) -> list[Candidate]:
        layers = range(self._model.config.num_layers)
        points = tuple((layer, site) for layer in layers for site in Site)
        rows = self._settings.sweep_rows
        captured = self._capture(bar, "states of all layers", transcripts, points, rows)
        return sweep(
            captured,
            self._validation,
            self._settings.training,
            stage_progress(bar, "fits at all layers", len(points)),
        )

    def _capture(
        self,
        bar: Progress,
        title: str,
        transcripts: list[Transcript],
        points: tuple[Point, ...],
        rows: int | None = None,
    ) -> CapturedStates:
        return capture_states(
            self._model,
            transcripts,
            points,
            rows_per_transcript=rows or self._settings.max_tokens + 1,
            generator=self._rows,
            progress=stage_progress(bar, title, len(transcripts)),
        )


def output_directory(path: str) -> Path:
    """The folder, made if it is missing; raises ``ValueError`` when that is impossible."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {path} cannot be made a folder: {error.strerror}") from error
    return folder
