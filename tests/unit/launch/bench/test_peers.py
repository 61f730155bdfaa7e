"""Peers in processes of their own: the wire, the failures, and transformers on a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from launch.bench.peers import client
from launch.bench.peers.client import PeerContestant, PeerOptions, start_peers
from launch.bench.runs import Run

OPTIONS = PeerOptions(
    peer="fake",
    mode="plain",
    python=sys.executable,
    model=Path("nowhere"),
    dtype="float32",
    threads=1,
    max_model_len=64,
)


@pytest.fixture
def _fake_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WORKER_MODULE", "tests.support.{peer}_worker")


def with_mode(mode: str, **changes: str) -> PeerOptions:
    return PeerOptions(
        peer=changes.get("peer", OPTIONS.peer),
        mode=mode,
        python=changes.get("python", OPTIONS.python),
        model=OPTIONS.model,
        dtype=OPTIONS.dtype,
        threads=OPTIONS.threads,
        max_model_len=OPTIONS.max_model_len,
    )


@pytest.mark.usefixtures("_fake_worker")
def test_answers_come_back_with_times_and_prints_stay_off_the_wire() -> None:
    peer = PeerContestant(OPTIONS)
    try:
        for _ in range(2):
            run = peer.answer((5, 6, 7), 2)
            assert run.token_ids == (5, 6)
            assert run.num_passes == 1
            assert run.decode_seconds >= 0
        assert peer.versions == {"fake": "1"}
        assert peer.label == "fake:plain"
    finally:
        peer.close()


@pytest.mark.usefixtures("_fake_worker")
@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("missing", "peer fake:missing: it cannot start, ImportError: No module named 'peer'"),
        ("dies", "peer fake:dies: its worker ended with code 3 before it answered"),
    ],
)
def test_peer_that_cannot_start_says_why_in_one_sentence(mode: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        PeerContestant(with_mode(mode))
    assert "\n" not in str(caught.value)


def test_python_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="--peer-python '/no/python' cannot be run"):
        PeerContestant(with_mode("plain", python="/no/python"))


@pytest.mark.usefixtures("_fake_worker")
def test_when_one_peer_cannot_start_the_started_ones_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(client.MODES, "fake", ("plain", "missing"))
    closed: list[str] = []
    close = PeerContestant.close

    def note_and_close(peer: PeerContestant) -> None:
        closed.append(peer.label)
        close(peer)

    monkeypatch.setattr(PeerContestant, "close", note_and_close)
    with pytest.raises(ValueError, match="fake:missing"):
        start_peers(("fake",), peer_python=None, options=OPTIONS)
    assert sorted(closed) == ["fake:missing", "fake:plain"]


@pytest.mark.slow
def test_transformers_answers_as_in_this_process_and_look_up_saves_passes(tmp_path: Path) -> None:
    """An untrained model soon repeats itself, which look-up finds."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        eos_token_id=63,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval()
    model.save_pretrained(tmp_path)
    prompt = (1, 2, 3, 4)
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=48, do_sample=False, pad_token_id=0
    )
    plain, look_up = (
        _transformers_run(tmp_path, mode, prompt) for mode in ("plain", "prompt_lookup")
    )
    assert plain.token_ids == look_up.token_ids == tuple(expected[0, 4:].tolist())
    assert plain.num_passes == len(plain.token_ids) - 1
    assert look_up.num_passes < plain.num_passes


def _transformers_run(directory: Path, mode: str, prompt: tuple[int, ...]) -> Run:
    options = PeerOptions(
        peer="transformers",
        mode=mode,
        python=sys.executable,
        model=directory,
        dtype="float32",
        threads=1,
        max_model_len=128,
    )
    peer = PeerContestant(options)
    try:
        return peer.answer(prompt, 48)
    finally:
        peer.close()
