"""Provenance: what a reader needs to repeat a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launch.provenance import command_line, versions, write_provenance
from launch.recipes import smollm2


def test_file_holds_command_versions_machine_and_config(tmp_path: Path) -> None:
    write_provenance(tmp_path, smollm2())
    fields = json.loads((tmp_path / "provenance.json").read_text())
    assert set(fields) == {"command", "commit", "date", "versions", "machine", "config"}
    assert fields["config"]["speculation"]["method"] == "switch_sd"
    assert fields["machine"]["cores"] >= 1


def test_versions_leave_out_what_is_not_installed() -> None:
    assert {"python", "torch"} <= set(versions())


def test_words_with_spaces_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--speculative-config", '{"a": 1}'])
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert command_line().endswith("""--speculative-config '{"a": 1}'""")
