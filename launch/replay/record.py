"""``python -m launch.replay record``: record a verifier's answers as traces.

Decoding goes plain, a token per pass. At every position the neural drafter is asked all the same,
and its draft is compared with what the verifier went on to say; the copy-intent probe and the
gate's probe are noted there too. So a trace says what every policy would have met.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drafters.assemble import assemble_engine
from engine.candidates import num_equal
from engine.config import EngineConfig
from engine.engine import SpeculativeEngine
from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, Draft, NeuralWish, SequenceView
from engine.speculation import SpeculationConfig, speculation
from launch.answering import AnsweringFlags, answering_engine
from launch.bench.workloads import HUMANEVAL, Prompt, load_workload, parse_workload
from launch.cli import Repeated, parse, user_errors
from launch.progress import progress_bar, stage_progress
from parallel.mesh import Mesh

PROG = "python -m launch.replay record"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFlags(AnsweringFlags):
    """Flags of ``python -m launch.replay record``."""

    out: Path
    """File for the traces (JSON Lines); it must not exist."""
    workload: Repeated[tuple[str, ...]] = ()
    """NAME, NAME:LIMIT or a JSONL file with a prompt per line, once per workload; by default
    humaneval."""
    limit: int | None = None
    """Prompts of each workload; by default all."""
    data_dir: Path | None = None
    """Folder with specbench.jsonl and math500.jsonl, for the workloads that come from them."""
    num_speculative_tokens: int = 7
    """Tokens that the drafter is asked for at every position."""


@dataclass(slots=True)
class Recording(Stateless):
    """A policy that decodes plainly and notes what it could have known; for one request alone."""

    num_speculative_tokens: int
    """0: no drafter is asked."""
    name: str = "recording"
    drafts: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    """The drafter's candidates behind 1, 2, ... output tokens."""
    scores: list[float] = field(default_factory=list)
    """The probe's score of the row that emitted output token 0, 1, ..."""

    @property
    def copy_index(self) -> CopyIndexShape:
        """Nothing is copied."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def choose(self, view: SequenceView) -> Choice:
        """Ask the drafter, keep its answer, verify none of it."""
        assert view.probe_score is not None, "recorded methods read a probe"
        self.scores.append(round(view.probe_score, 4))
        if not self.num_speculative_tokens:
            return Draft()
        return NeuralWish(max_tokens=self.num_speculative_tokens, finish=self._keep)

    def _keep(self, draft: Draft) -> Draft:
        self.drafts.append(draft.candidates)
        return Draft()


class Recorder:
    """An engine that answers prompts twice: with the drafter and the probe, and with the gate."""

    def __init__(self, config: EngineConfig, num_speculative_tokens: int) -> None:
        """Load the engine; raises ``ValueError`` for whatever does not fit."""
        self._room = config.max_model_len
        self._drafted = speculation(
            "switch_sd", drafter="eagle3", num_speculative_tokens=num_speculative_tokens
        )
        self._gated = speculation("switch_sd_plus")
        self._engine = assemble_engine(
            replace(config, speculation=self._drafted), Mesh.single(), also=(self._gated,)
        )

    def prompts(self, flags: RecordFlags) -> list[Prompt]:
        """Of all workloads; raises ``ValueError`` for one that cannot be read or is too long."""
        specs = [
            parse_workload(text, limit=flags.limit, data_dir=flags.data_dir)
            for text in flags.workload or (HUMANEVAL,)
        ]
        found = [p for spec in specs for p in load_workload(spec, self._engine.tokenizer)]
        for prompt in found:
            if len(prompt.token_ids) + flags.max_tokens > self._room:
                raise ValueError(
                    f"prompt {prompt.name} has {len(prompt.token_ids)} tokens: with --max-tokens "
                    f"{flags.max_tokens} that is more than the {self._room} of a sequence."
                )
        return found

    def record(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """One answer as a line of a trace file; raises ``ValueError`` if it does not fit."""
        drafted, output = self._answer(prompt, max_tokens, self._drafted)
        gated, same = self._answer(prompt, max_tokens, self._gated)
        assert output == same, "greedy answers do not depend on who listens"
        return {
            "name": prompt.name,
            "prompt_token_ids": prompt.token_ids,
            "generated_token_ids": output,
            "acc_eagle": {"acc_len": accepted_lengths(output, drafted.drafts)},
            "probe_scores": drafted.scores,
            "gate_scores": gated.scores,
        }

    def _answer(
        self, prompt: Prompt, max_tokens: int, method: SpeculationConfig
    ) -> tuple[Recording, tuple[int, ...]]:
        recording = Recording(method.num_speculative_tokens * (method.drafter != "none"))
        self._engine.use_policy(method)
        scheduler = self._engine.scheduler
        scheduler.use(replace(scheduler.admission.drafting, policy=recording))
        return recording, _generated(self._engine, prompt, max_tokens)


def _generated(engine: SpeculativeEngine, prompt: Prompt, max_tokens: int) -> tuple[int, ...]:
    return engine.generate(prompt.token_ids, max_tokens=max_tokens).token_ids


def accepted_lengths(output: Sequence[int], drafts: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    """Tokens that a pass emits at each position; ``drafts`` begin behind the first token.

    Nobody is asked where only one token has room.
    """
    lengths = [
        1 + max((num_equal(one, output[place:]) for one in candidates), default=0)
        for place, candidates in enumerate(drafts, start=1)
    ]
    return [1, *lengths, *[1] * (len(output) - len(lengths) - 1)]


def record(argv: Sequence[str]) -> None:
    """Record all prompts; a line is written as soon as its answer is there."""
    flags = parse(RecordFlags, argv, prog=PROG, description="Record answers as traces.")
    with user_errors(PROG):
        if flags.out.exists():
            raise ValueError(f"--out {flags.out} is there already: give a new file.")
        if not flags.out.parent.is_dir():
            raise ValueError(f"--out {flags.out}: there is no folder {flags.out.parent}.")
        recorder = Recorder(answering_engine(flags), flags.num_speculative_tokens)
        prompts = recorder.prompts(flags)
    with progress_bar() as bar, flags.out.open("w", encoding="utf-8") as file:
        progress = stage_progress(bar, "answers", len(prompts))
        for prompt in prompts:
            file.write(json.dumps(recorder.record(prompt, flags.max_tokens)) + "\n")
            progress(1)
