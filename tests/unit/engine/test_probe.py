"""The probe record: scores by hand, survives its file, and refuses whatever it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.interfaces import Site
from engine.models.config import ModelConfig
from engine.probe import Probe, load_probe, save_probe

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=32,
    hidden_size=4,
    intermediate_size=8,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=64,
)
PROBE = Probe(
    weight=torch.tensor([1.0, -2.0, 0.5, 0.0]),
    threshold=0.375,
    layer=2,
    site=Site.ATTENTION,
    model_id="owner/Model-1B",
)


def test_score_is_the_sigmoid_of_the_dot_product() -> None:
    hidden = torch.tensor([[0.0, 0.0, 0.0, 9.0], [1.0, 1.0, 2.0, 0.0], [3.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([0.5, 0.5, 1 / (1 + torch.e**-3)])
    torch.testing.assert_close(PROBE.score(hidden), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_scores_are_float32_whatever_the_model_computes_in(dtype: torch.dtype) -> None:
    assert PROBE.score(torch.ones(2, 4, dtype=dtype)).dtype == torch.float32


def test_a_rows_score_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 576, generator=generator)
    probe = replace(PROBE, weight=torch.randn(576, generator=generator))
    together = probe.score(hidden)
    alone = torch.cat([probe.score(row[None]) for row in hidden])
    torch.testing.assert_close(together, alone)


def test_saved_probe_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "probe.safetensors"
    save_probe(replace(PROBE, site=Site.MLP, label_shift=1, threshold=0.1 + 0.2), path)
    loaded = load_probe(path)
    assert torch.equal(loaded.weight, PROBE.weight)
    assert (loaded.threshold, loaded.layer, loaded.site) == (0.1 + 0.2, 2, Site.MLP)
    assert (loaded.model_id, loaded.label_shift) == (PROBE.model_id, 1)


def test_gate_thresholds_survive_saving_and_the_nearest_length_counts(tmp_path: Path) -> None:
    path = tmp_path / "probe.safetensors"
    save_probe(replace(PROBE, gate_thresholds={2: 0.4, 5: 0.1}), path)
    loaded = load_probe(path)
    assert [loaded.gate_threshold(length) for length in (1, 2, 3, 4, 9)] == [
        0.4,
        0.4,
        0.4,
        0.1,
        0.1,
    ]
    assert PROBE.gate_threshold(3) == PROBE.threshold
    with pytest.raises(ValueError, match="from 0 to 1, not 1"):
        replace(PROBE, gate_thresholds={2: 1.5})


def test_fitting_model_passes_the_check_wherever_it_lies() -> None:
    PROBE.check(CONFIG, "owner/Model-1B")
    PROBE.check(CONFIG, "/data/models/model-1b/")


@pytest.mark.parametrize(
    ("config", "model_id", "sentence"),
    [
        (CONFIG, "owner/Model-8B", "trained on owner/Model-1B, not on owner/Model-8B"),
        (replace(CONFIG, hidden_size=5), "owner/Model-1B", "4 weights but .* hidden size 5"),
        (replace(CONFIG, num_layers=2), "owner/Model-1B", "reads layer 2 but .* layers 0 to 1"),
    ],
)
def test_foreign_model_is_refused_in_one_sentence(
    config: ModelConfig, model_id: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        PROBE.check(config, model_id)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no probe file .*nowhere"):
        load_probe(tmp_path / "nowhere")


def test_file_that_is_no_probe_is_refused(tmp_path: Path) -> None:
    text, tensors, bad = (tmp_path / name for name in ("text", "tensors", "bad"))
    text.write_text("hello")
    save_file({"weight": torch.zeros(3)}, tensors)
    save_probe(PROBE, bad)
    bad.write_bytes(bad.read_bytes().replace(b"0.375", b"7.375"))
    for path, sentence in (
        (text, "not a safetensors"),
        (tensors, "is not a probe"),
        (bad, "0 to 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_probe(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 1.5},
        {"layer": -1},
        {"label_shift": 2},
        {"weight": torch.zeros(2, 2)},
        {"weight": torch.zeros(4, dtype=torch.float64)},
    ],
)
def test_impossible_probe_cannot_be_made(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a probe's"):
        replace(PROBE, **changes)  # type: ignore[arg-type]
