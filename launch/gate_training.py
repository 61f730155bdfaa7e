"""The whole training of a gate: prompts, answers, states, fits, held-out check.

``python -m launch.train gate`` runs it. CopyDiversity prompts and natural ones (ShareGPT) train and
validate; the held-out workloads are of other kinds and are looked at once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor

from drafters.assemble import assemble_engine
from drafters.training.answers import AnswerFile
from drafters.training.benefit import Flags, GateData, gate_data
from drafters.training.capture import CapturedStates, Point, Transcript, capture_states
from drafters.training.capture import generate_transcripts as answer_all
from drafters.training.gate_model import BenefitProbe, GateFit, fit_copies, fit_probe
from drafters.training.gate_quality import RatedSteps, rate_steps
from engine.config import EngineConfig
from engine.gate import Gate
from engine.interfaces import Site
from engine.probe import Probe
from engine.weights import load_model
from launch.bench.workloads import load_workload, parse_workload
from launch.data.copy_diversity import copy_diversity
from launch.data.sharegpt import sharegpt_prompts
from launch.progress import progress_bar, stage_progress
from parallel.mesh import Mesh

VALIDATION_SHARE = 5
"""Every fifth prompt validates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """What is trained on: the engine that answers, the data and the fits."""

    engine: EngineConfig
    fit: GateFit
    num_prompts: int = 600
    """CopyDiversity prompts."""
    num_natural: int = 250
    """ShareGPT prompts."""
    held_out: tuple[str, ...] = ("humaneval",)
    """Workloads of the final check: names or JSONL files."""
    num_held_out: int = 80
    """Prompts of each, where its name gives no limit."""
    data_dir: Path | None = None
    """Where held-out workloads have their files."""
    max_prompt_tokens: int = 1_200
    """Longer natural prompts are left out."""
    max_tokens: int = 192
    """Longest answer."""
    layers: tuple[int, ...] = ()
    """Layers behind which the probe may read; empty: every other one of the later half."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "num_natural", "num_held_out", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_prompts < VALIDATION_SHARE:
            raise ValueError(f"num_prompts must be at least {VALIDATION_SHARE}: some validate")
        if not self.held_out:
            raise ValueError("held_out must name at least one workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The trained gate and what is reported about it."""

    gate: Gate
    probe_aucs: Mapping[int, float]
    """Layer to the probe's own AUC for benefit on the validation steps."""
    data: GateData
    informed: Mapping[str, RatedSteps]
    """Validation, then every held-out workload, then all held-out ones together."""
    blind: Mapping[str, RatedSteps]
    """The same without the probe."""


class GateTrainer:
    """Holds the loaded models while :meth:`run` goes through the stages."""

    def __init__(self, run: GateRun, answers: Path) -> None:
        """Load the engine and the data; raises ``ValueError`` for whatever does not fit."""
        self._settings = run
        self._answers = AnswerFile(answers, model_id=run.engine.model, max_tokens=run.max_tokens)
        self._engine = assemble_engine(run.engine, Mesh.single())
        tokenizer = self._engine.tokenizer
        natural = sharegpt_prompts(
            tokenizer, num_prompts=run.num_natural, max_prompt_tokens=run.max_prompt_tokens
        )
        made = copy_diversity(run.num_prompts, seed=run.fit.seed)
        self._prompts = [tuple(tokenizer.chat(prompt.messages)) for prompt in made]
        self._prompts += [prompt.token_ids for prompt in natural]
        room = run.engine.max_model_len - run.max_tokens
        workloads = [
            parse_workload(text, limit=run.num_held_out, data_dir=run.data_dir)
            for text in run.held_out
        ]
        self._held_out = {
            Path(workload.name).stem: [
                prompt.token_ids
                for prompt in load_workload(workload, tokenizer)
                if len(prompt.token_ids) <= room
            ]
            for workload in workloads
        }
        self._model = load_model(
            run.engine.model,
            dtype=torch.float32,
            mesh=Mesh.single(),
            max_model_len=run.engine.max_model_len,
        )

    def run(self) -> GateResult:
        """Train; shows a progress bar per stage."""
        with progress_bar() as bar:
            transcripts = self._answer(bar, "answers", self._prompts)
            points = self._points()
            captured = self._capture(bar, "states", transcripts, points)
            data = gate_data(transcripts, seed=self._settings.fit.seed)
            validation = data.transcripts % VALIDATION_SHARE == 0
            layer, probe, aucs = self._fit_probes(captured, data, validation)
            gate = self._fit_gate(data, ~validation, layer, probe)
            checked = {"validation": transcripts[::VALIDATION_SHARE]}
            for name, prompts in self._held_out.items():
                checked[name] = self._answer(bar, f"{name} answers", prompts)
            informed, blind = {}, {}
            for name, entries in checked.items():
                states = self._capture(bar, f"{name} states", entries, ((layer, Site.MLP),))
                informed[name] = rate_steps(gate, entries, _logits(states, gate.probe))
                blind[name] = rate_steps(gate, entries, None)
        return GateResult(
            gate=gate,
            probe_aucs=aucs,
            data=data,
            informed=informed | {"held out": _together(informed)},
            blind=blind | {"held out": _together(blind)},
        )

    def _points(self) -> tuple[Point, ...]:
        num_layers = self._model.config.num_layers
        layers = self._settings.layers or tuple(range(num_layers // 2, num_layers, 2))
        return tuple((layer, Site.MLP) for layer in layers)

    def _fit_probes(
        self, captured: CapturedStates, data: GateData, validation: Flags
    ) -> tuple[int, BenefitProbe, dict[int, float]]:
        """The layer whose probe knows best which copies pay."""
        rows = _rows_of_steps(captured, data)
        fitted = {
            layer: fit_probe(captured.states[place][rows], data, validation, self._settings.fit)
            for place, (layer, _) in enumerate(captured.points)
        }
        best = max(fitted, key=lambda layer: fitted[layer].auc)
        return best, fitted[best], {layer: found.auc for layer, found in fitted.items()}

    def _fit_gate(self, data: GateData, training: Flags, layer: int, probe: BenefitProbe) -> Gate:
        fit = self._settings.fit
        return Gate(
            probe=Probe(
                weight=probe.weight,
                threshold=0.5,
                layer=layer,
                site=Site.MLP,
                model_id=self._settings.engine.model,
            ),
            informed=fit_copies(data, training, probe.logits, fit),
            blind=fit_copies(data, training, None, fit),
        )

    def _answer(
        self, bar: Progress, title: str, prompts: Sequence[tuple[int, ...]]
    ) -> list[Transcript]:
        return answer_all(
            self._engine,
            prompts,
            self._answers,
            max_tokens=self._settings.max_tokens,
            progress=stage_progress(bar, title, len(prompts)),
        )

    def _capture(
        self,
        bar: Progress,
        title: str,
        transcripts: Sequence[Transcript],
        points: tuple[Point, ...],
    ) -> CapturedStates:
        return capture_states(
            self._model,
            transcripts,
            points,
            rows_per_transcript=self._settings.max_tokens + 1,
            generator=torch.Generator().manual_seed(self._settings.fit.seed),
            progress=stage_progress(bar, title, len(transcripts)),
        )


def _rows_of_steps(captured: CapturedStates, data: GateData) -> Tensor:
    """[S]: where the captured states hold each step's row NA."""
    counts = torch.bincount(captured.transcripts)
    starts = counts.cumsum(0) - counts
    return starts[torch.from_numpy(data.transcripts)] + torch.from_numpy(data.rows)


def _logits(captured: CapturedStates, probe: Probe) -> list[list[float]]:
    """The probe's logit of every captured row, by transcript."""
    logits = captured.states[0].float() @ probe.weight
    sizes = torch.bincount(captured.transcripts).tolist()
    return [part.tolist() for part in torch.split(logits, sizes)]


def _together(rated: Mapping[str, RatedSteps]) -> RatedSteps:
    return reduce(add, (steps for name, steps in rated.items() if name != "validation"))
