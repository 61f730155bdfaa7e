"""Capture: answers are plain greedy ones, states and labels come from the stated rows."""

from __future__ import annotations

from pathlib import Path

import torch

from drafters.training.answers import AnswerFile
from drafters.training.capture import (
    NO_LABEL,
    Transcript,
    capture_states,
    generate_transcripts,
)
from drafters.training.copy_labels import accepted_copy_lengths, copy_labels
from engine.interfaces import Site
from engine.models.config import ModelConfig
from engine.speculation import speculation
from parallel.mesh import Mesh
from tests.support.causal import CausalContext
from tests.support.engines import TinyEngine, build_engine, random_decoder
from tests.support.reference import greedy_decode

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=23,
    hidden_size=16,
    intermediate_size=24,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=256,
)
PROMPTS = [(1, 2, 3, 4, 5), (7, 7, 2), tuple(range(20))]
POINTS = ((2, Site.MLP), (0, Site.ATTENTION), (1, Site.MLP))


def _ignore(_: int) -> None:
    """A progress bar nobody looks at."""


def _transcripts() -> list[Transcript]:
    model = random_decoder(CONFIG, dtype=torch.float64)
    return [
        Transcript(prompt_ids=prompt, output_ids=greedy_decode(model, prompt, 12))
        for prompt in PROMPTS
    ]


def test_answers_are_plain_greedy_ones_and_progress_counts_prompts(tmp_path: Path) -> None:
    engine = build_engine(
        TinyEngine(config=CONFIG, num_slots=2, speculation=speculation("prompt_lookup")),
        Mesh.single(),
    )
    answers = AnswerFile(tmp_path / "answers", model_id="tiny", max_tokens=12)
    done: list[int] = []
    found = generate_transcripts(engine, PROMPTS, answers, max_tokens=12, progress=done.append)
    assert found == _transcripts()
    assert sum(done) == len(PROMPTS)
    again = generate_transcripts(engine, PROMPTS, answers, max_tokens=12, progress=done.append)
    assert again == found


def test_states_are_those_of_the_rows_whose_input_is_the_token() -> None:
    """Off-by-one here would train the probe on the row before or behind the one the gate reads."""
    model, transcripts = random_decoder(CONFIG, dtype=torch.float64), _transcripts()
    captured = capture_states(
        model,
        transcripts,
        POINTS,
        rows_per_transcript=100,
        generator=torch.Generator(),
        progress=_ignore,
    )
    for index, entry in enumerate(transcripts):
        context = CausalContext(len(entry.token_ids))
        model(torch.tensor(entry.token_ids), context)
        observed = {(layer, site): hidden for layer, site, hidden in context.observed}
        states = captured.states[:, captured.transcripts == index]
        for place, point in enumerate(POINTS):
            expected = observed[point][len(entry.prompt_ids) - 1 :].bfloat16()
            torch.testing.assert_close(states[place], expected, rtol=1e-2, atol=1e-6)


def test_labels_follow_their_shift() -> None:
    model, transcripts = random_decoder(CONFIG, dtype=torch.float64), _transcripts()
    captured = capture_states(
        model,
        transcripts,
        POINTS[:1],
        rows_per_transcript=100,
        generator=torch.Generator(),
        progress=_ignore,
    )
    for index, entry in enumerate(transcripts):
        rows = captured.transcripts == index
        spans = copy_labels(entry.token_ids, len(entry.prompt_ids)).long().tolist()
        gains = accepted_copy_lengths(entry.token_ids, len(entry.prompt_ids)).tolist()
        assert captured.labels[0][rows].tolist() == [NO_LABEL, *spans]
        assert captured.labels[1][rows].tolist() == [*spans, NO_LABEL]
        assert captured.gains[rows].tolist() == [*gains, -1]


def test_drawn_rows_are_a_part_of_all_rows_and_a_function_of_the_seed() -> None:
    model, transcripts = random_decoder(CONFIG, dtype=torch.float64), _transcripts()
    drawn = [
        capture_states(
            model,
            transcripts,
            POINTS,
            rows_per_transcript=limit,
            generator=torch.Generator().manual_seed(5),
            progress=_ignore,
        )
        for limit in (4, 4, 100)
    ]
    assert torch.equal(drawn[0].states, drawn[1].states)
    assert drawn[0].transcripts.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    everything = {tuple(row.tolist()) for row in drawn[2].states[0]}
    assert {tuple(row.tolist()) for row in drawn[0].states[0]} <= everything
