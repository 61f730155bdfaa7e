"""The load generator against a real socket: both kinds of rounds, errors, wrong flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.tokenizer import load_tokenizer
from launch.bench.load import main
from tests.support.fake_backend import FakeBackend
from tests.support.http_server import serving
from tests.support.tiny import LLAMA2, write_checkpoint


@pytest.fixture
def backend(tmp_path: Path) -> FakeBackend:
    return FakeBackend(load_tokenizer(write_checkpoint(tmp_path, LLAMA2)))


@pytest.fixture
def workload(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello"}\n{"prompt": "ab"}\n')
    return str(file)


def run(url: str, workload: str, *more: str) -> int:
    rounds = ("--seconds", "0.2", "--rounds", "2", "--concurrency", "1,3")
    return main(["--url", url, "--workload", workload, *rounds, *more])


def test_rounds_alternate_and_everything_is_counted(
    backend: FakeBackend, workload: str, tmp_path: Path
) -> None:
    out = tmp_path / "load.json"
    with serving(backend) as url:
        assert run(url, workload, "--out", str(out)) == 0
    found = json.loads(out.read_text())
    assert set(found) == {"1", "3"}
    for rounds in found.values():
        assert [one["speculates"] for one in rounds] == [False, True, False, True]
        assert all(one["completed"] > 0 and not one["errors"] for one in rounds)
        assert all(one["tokens"] >= one["completed"] for one in rounds)
    kinds = {request.speculation is None for request in backend.requests}
    assert kinds == {True, False}


def test_errors_are_shown_and_fail_the_run(
    backend: FakeBackend, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.is_full = True
    with serving(backend) as url:
        assert run(url, workload) == 1
    assert "no more may" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_an_error(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("http://127.0.0.1:9", workload) == 1
    assert "ConnectError" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "x", "1,,2"])
def test_a_wrong_number_of_clients_is_one_sentence(
    text: str, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--workload", workload, "--concurrency", text])
    assert stop.value.code == 2
    assert "--concurrency must be numbers such as 1,4,16" in capsys.readouterr().err
