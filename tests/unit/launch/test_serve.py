"""The server's command line: what is refused before anything is started, and the ready line."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from launch.serve import ServeFlags, cluster_choice, main, ready_line, server_config


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--recipe", "nope"], "--recipe must be one of"),
        (["--port", "0"], "--port must be an integer from 1 to 65535"),
        (["--port", "x"], "is not an integer"),
        (["--api-key", ""], "--api-key must not be empty"),
        (["--tensor-parallel-size", "0"], "--tensor-parallel-size must be"),
        (["--host", "203.0.113.9"], "cannot listen on 203.0.113.9"),
        (["--tensor-parallel-size", "999"], "need 999 CPUs on one node, and here are"),
        (["--recipe", "llama-3.3-70b"], "need 1 GPU and 1 CPU on one node"),
        (["--data-parallel-size", "99"], "need 99 times 1 CPU on one node, and here are"),
        (["--data-parallel-size", "0"], "--data-parallel-size must be 1 or more, not 0"),
        (["--max-waiting", "-1"], "--max-waiting must be 0 or more, not -1"),
        (["--watchdog-seconds", "0"], "--watchdog-seconds must be above 0, not 0"),
        (["--max-kv-tokens", "5"], "--max-kv-tokens must be an integer from 4096"),
        (["--otlp-traces-endpoint", "http://x"], "needs the package opentelemetry"),
        (["--model", "/no/such/model"], "does not exist"),
        (["--speculative-config", '{"probe": "/no/such/probe"}'], "/no/such/probe"),
        (["--speculative-config", '{"drafter": "eagle3", "model": "/no/head"}'], "/no/head"),
        (["--speculative-config", '{"drafter": "small_model", "model": "/no/model"}'], "/no/model"),
        (["--unknown"], "--unknown"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["--recipe", "smollm2", "--tensor-parallel-size", "1", "--port", "8137", *argv])
    assert stop.value.code == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 1


def test_a_used_port_is_named(used_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--recipe", "smollm2", "--port", str(used_port)])
    assert stop.value.code == 2
    assert f"port {used_port} on 127.0.0.1 is in use" in capsys.readouterr().err


def test_smollm2_is_served_by_two_ranks_unless_told_otherwise() -> None:
    flags = ServeFlags(recipe="smollm2")
    assert server_config(flags).engine.tensor_parallel_size == 2
    assert server_config(replace(flags, tensor_parallel_size=1)).engine.tensor_parallel_size == 1


def test_the_default_recipe_is_the_70b_on_gpus() -> None:
    config = server_config(ServeFlags())
    assert "70B" in config.engine.model
    assert config.device == "cuda"
    assert config.engine.tensor_parallel_size == 4


def test_the_served_name_is_the_model_given_else_the_recipe() -> None:
    assert server_config(ServeFlags(recipe="smollm2")).served_model_name == "smollm2"
    assert server_config(ServeFlags(recipe="smollm2", model="a/b")).served_model_name == "a/b"
    named = ServeFlags(recipe="smollm2", model="a/b", served_model_name="c")
    assert server_config(named).served_model_name == "c"


def test_the_cluster_comes_from_rays_own_variables() -> None:
    assert cluster_choice({}).address is None
    assert cluster_choice({"RAY_ADDRESS": "1.2.3.4:6379"}).address == "1.2.3.4:6379"
    assert cluster_choice({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}).in_job


def test_the_ready_line_is_one_line_with_a_command_to_paste() -> None:
    flags = ServeFlags(recipe="smollm2", host="0.0.0.0", port=8137, api_key="secret")
    line = ready_line(server_config(flags))
    assert "\n" not in line
    assert "secret" not in line
    words = shlex.split(line.partition("for example: ")[2])
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8137/v1/chat/completions"]
