"""``python -m launch.train ablation``: which data a copy-intent probe needs (SwitchSD, Figure 4).

The same number of texts from three sources trains a probe at the same point: text as people wrote
it, the same with constructed copies, and the verifier's own answers to CopyDiversity's prompts. All
are judged on HumanEval answers and on CopyDiversity answers that none was trained on.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import Progress

from drafters.assemble import assemble_engine, configured_probe
from drafters.training.answers import AnswerFile
from drafters.training.capture import (
    CapturedStates,
    Point,
    Transcript,
    capture_states,
    generate_transcripts,
)
from drafters.training.copied_text import constructed_copies, natural_text
from drafters.training.probe import (
    ProbeQuality,
    ProbeTrainingConfig,
    finalists,
    fit_point,
    quality,
    split_prompts,
)
from engine.config import EngineConfig
from engine.probe import Probe
from engine.weights import load_model
from launch.answering import AnsweringFlags, answering_engine
from launch.bench.workloads import HUMANEVAL, load_workload
from launch.cli import parse, user_errors
from launch.data.copy_diversity import copy_diversity
from launch.data.sharegpt import sharegpt_prompts
from launch.probe_training import output_directory
from launch.progress import progress_bar, stage_progress
from launch.provenance import provenance
from parallel.mesh import Mesh

PROG = "python -m launch.train ablation"
SOURCES = ("natural", "constructed", "copy_diversity")


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationFlags(AnsweringFlags):
    """Flags of ``python -m launch.train ablation``."""

    out: str
    """Folder for ablation.json and ablation.png."""
    texts: int = 200
    """Texts of each source; a fifth of them chooses penalty and threshold."""
    checked: int = 60
    """CopyDiversity answers and HumanEval answers that judge, each."""
    seed: int = 0
    """Seed of prompts, constructed copies and splits."""


class Ablation:
    """Holds the loaded models while :meth:`run` goes through the sources."""

    def __init__(self, flags: AblationFlags, config: EngineConfig, answers: Path) -> None:
        """Load the engine and the data; raises ``ValueError`` for whatever does not fit."""
        self._flags, self._config = flags, config
        self._training = ProbeTrainingConfig(seed=flags.seed)
        self._validation = split_prompts(flags.texts, self._training)
        self._like = configured_probe(config)
        if self._like is None:
            raise ValueError(f"{config.model} has no probe whose layer could be used: train one.")
        self._point: Point = (self._like.layer, self._like.site)
        self._engine = assemble_engine(config, Mesh.single())
        self._answers = AnswerFile(answers, model_id=config.model, max_tokens=flags.max_tokens)
        self._model = load_model(
            config.model,
            dtype=torch.float32,
            mesh=Mesh.single(),
            max_model_len=config.max_model_len,
        )

    def run(self) -> dict[str, dict[str, ProbeQuality]]:
        """Source to what it is judged on to quality; shows a progress bar per stage."""
        with progress_bar() as bar:
            made, held_out = self._copy_diversity(bar), self._human_eval(bar)
            sources = dict(zip(SOURCES, (*self._texts(), made[: self._flags.texts]), strict=True))
            checked = {
                "HumanEval answers": self._capture(bar, "HumanEval states", held_out),
                "CopyDiversity answers": self._capture(
                    bar, "CopyDiversity states", made[self._flags.texts :]
                ),
            }
            found = {}
            for name, texts in sources.items():
                probe = self._fit(self._capture(bar, f"{name} states", texts))
                found[name] = {title: quality(probe, states) for title, states in checked.items()}
        return found

    def _copy_diversity(self, bar: Progress) -> list[Transcript]:
        """Answers that train, then those that judge."""
        count = self._flags.texts + self._flags.checked
        prompts = copy_diversity(count, seed=self._flags.seed)
        chat = self._engine.tokenizer.chat
        return self._answer(bar, "answers", [tuple(chat(prompt.messages)) for prompt in prompts])

    def _human_eval(self, bar: Progress) -> list[Transcript]:
        found = load_workload(HUMANEVAL, self._engine.tokenizer, limit=self._flags.checked)
        return self._answer(bar, "HumanEval answers", [prompt.token_ids for prompt in found])

    def _texts(self) -> tuple[list[Transcript], list[Transcript]]:
        """Natural texts, and the same ones with constructed copies: each is the next one's filler.

        Raises:
            ValueError: there are too few texts.
        """
        prompts = sharegpt_prompts(
            self._engine.tokenizer,
            num_prompts=self._flags.texts,
            max_prompt_tokens=2 * self._flags.max_tokens,
            seed=self._flags.seed,
        )
        texts = [prompt.token_ids for prompt in prompts]
        if len(texts) < self._flags.texts:
            raise ValueError(f"--texts must be at most {len(texts)}: there are no more.")
        random = Random(self._flags.seed)
        made = [
            constructed_copies(text, filler, random, max_tokens=self._flags.max_tokens)
            for text, filler in zip(texts, texts[1:] + texts[:1], strict=True)
        ]
        return [natural_text(text) for text in texts], made

    def _fit(self, captured: CapturedStates) -> Probe:
        """The best of all penalties, by F1 on the source's own validation texts."""
        assert self._like is not None, "checked at the start"
        candidates = fit_point(
            captured, 0, self._like.label_shift, self._validation, self._training.penalties
        )
        return finalists(candidates, 1)[0].probe(self._config.model)

    def _answer(
        self, bar: Progress, title: str, prompts: Sequence[tuple[int, ...]]
    ) -> list[Transcript]:
        return generate_transcripts(
            self._engine,
            prompts,
            self._answers,
            max_tokens=self._flags.max_tokens,
            progress=stage_progress(bar, title, len(prompts)),
        )

    def _capture(self, bar: Progress, title: str, texts: Sequence[Transcript]) -> CapturedStates:
        return capture_states(
            self._model,
            texts,
            (self._point,),
            rows_per_transcript=self._flags.max_tokens + 1,
            generator=torch.Generator().manual_seed(self._flags.seed),
            progress=stage_progress(bar, title, len(texts)),
        )


def train_ablation(argv: Sequence[str]) -> None:
    """Train a probe per source, judge them, write and show the comparison."""
    if not sys.stdout.isatty():  # a log file shows no progress bar, so it gets a line per stage
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    flags = parse(AblationFlags, argv, prog=PROG, description="Which data a probe needs.")
    with user_errors(PROG):
        if flags.texts < 1 or flags.checked < 1:
            raise ValueError("--texts and --checked must be 1 or more.")
        config = answering_engine(flags)
        folder = output_directory(flags.out)
        ablation = Ablation(flags, config, folder / "answers.jsonl")
        found = ablation.run()
    write_ablation(found, folder, origin=provenance(flags))
    for source, judged in found.items():
        for title, one in judged.items():
            sys.stdout.write(f"{source:15}  {title:22}  AUC {one.auc:.3f}  F1 {one.f1:.3f}\n")


def write_ablation(
    found: Mapping[str, Mapping[str, ProbeQuality]], folder: Path, *, origin: dict[str, Any]
) -> None:
    """``ablation.json`` and ``ablation.png``: AUC and F1 of every source."""
    qualities = {
        source: {t: asdict(q) for t, q in judged.items()} for source, judged in found.items()
    }
    (folder / "ablation.json").write_text(json.dumps(origin | {"quality": qualities}, indent=1))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, measure in zip(figure.subplots(1, 2), ("auc", "f1"), strict=True):
        for index, (source, judged) in enumerate(found.items()):
            places = [place + 0.27 * index for place in range(len(judged))]
            axes.bar(places, [getattr(q, measure) for q in judged.values()], 0.25, label=source)
        titles = list(next(iter(found.values())))
        axes.set_xticks([place + 0.27 for place in range(len(titles))], titles)
        axes.set_ylabel({"auc": "ROC AUC", "f1": "F1"}[measure])
        axes.set_ylim(0.0, 1.0)
    axes.legend(title="trained on")
    figure.savefig(folder / "ablation.png", dpi=120)
