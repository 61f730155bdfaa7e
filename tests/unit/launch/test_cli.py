"""Command lines: a user's mistake is one sentence on stderr and exit code 2, never a traceback."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from launch.cli import Positional, Repeated, parse, user_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Flags of a made-up command."""

    word: Positional[str] = ""
    """A word."""
    num_things: int | None = None
    """How many things."""
    share: float = 0.5
    """Which share."""
    name: Repeated[tuple[str, ...]] = ()
    """Names."""


def parsed(*argv: str) -> Flags:
    return parse(Flags, list(argv), prog="python -m made.up", description="Made up.")


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        parsed(*argv)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, "one sentence"
    assert captured.err.startswith("python -m made.up: ")
    return captured.err


def test_flags_are_the_fields_with_hyphens() -> None:
    flags = parsed("hello", "--num-things", "3", "--share", "0.25", "--name", "a", "--name", "b")
    assert flags == Flags(word="hello", num_things=3, share=0.25, name=("a", "b"))
    assert parsed() == Flags()


def test_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    message = complaint(capsys, "--num-things", "many")
    assert "--num-things" in message
    assert "'many' is not an integer" in message


def test_unknown_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Unrecognized options: --colour" in complaint(capsys, "--colour", "red")


def test_missing_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'--num-things'" in complaint(capsys, "--num-things")


def test_help_shows_the_field_texts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parsed("--help")
    captured = capsys.readouterr()
    assert stop.value.code == 0
    assert "How many things." in captured.out
    assert captured.err == ""


def test_value_error_becomes_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop, user_errors("cmd"):
        raise ValueError("no such\n  thing")
    assert stop.value.code == 2
    assert capsys.readouterr().err == "cmd: no such thing\n"


def test_silent_rank_exits_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), user_errors("cmd", speaks=False):
        raise ValueError("said by another rank")
    assert capsys.readouterr().err == ""


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(KeyError), user_errors("cmd"):
        raise KeyError("defect")
