"""Drafters cut from their verifier ship without its embedding, which is most of a small model.

Such a checkpoint lacks ``model.embed_tokens.weight`` (and has a tied head). It is completed with
the verifier's once, in the cache, because everything that reads models wants whole ones.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.cache_directory import default_cache_directory
from engine.weights.checkpoint import SINGLE_NAME, Checkpoint
from engine.weights.model_config import read_model_config
from engine.weights.names import pieces_of
from parallel.plan import Shard, ShardStyle

EMBEDDING = "model.embed_tokens.weight"


def lacks_embedding(directory: Path) -> bool:
    """Whether the drafter in a directory borrows its verifier's embedding."""
    file = directory / SINGLE_NAME
    if not file.is_file():
        return False
    with safe_open(file, framework="pt") as tensors:
        return EMBEDDING not in tensors.keys()  # noqa: SIM118 - not a dictionary


def with_embedding(directory: Path, verifier: Path, *, cache_dir: Path | None = None) -> Path:
    """The directory itself, or a completed copy in the cache when it lacks an embedding.

    Raises:
        ValueError: the verifier has no such embedding, or the copy cannot be written.
    """
    if not lacks_embedding(directory):
        return directory
    cache = default_cache_directory() if cache_dir is None else cache_dir
    target = cache / "drafters" / f"{directory.name}-{_fingerprint(directory, verifier)}"
    try:
        _complete_once(directory, verifier, target)
    except OSError as error:
        raise ValueError(
            f"{directory} cannot be completed into {target.parent}: {error.strerror}: set "
            "XDG_CACHE_HOME to a folder with room for it"
        ) from error
    return target


def _complete_once(directory: Path, verifier: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f"{target.name}.lock"):
        if target.is_dir():
            return
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            _complete(directory, verifier, partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _complete(directory: Path, verifier: Path, target: Path) -> None:
    shutil.copytree(directory, target, dirs_exist_ok=True)
    for file in sorted(verifier.iterdir()):
        if file.name.startswith(("tokenizer", "chat_template")):
            shutil.copyfile(file, target / file.name)
    tensors = load_file(directory / SINGLE_NAME)
    dtype = next(iter(tensors.values())).dtype
    pieces = pieces_of("embed.weight", read_model_config(verifier))
    whole = Shard(style=ShardStyle.REPLICATE)
    tensors[EMBEDDING] = Checkpoint(verifier).read(pieces, whole, dtype=dtype)
    save_file(tensors, target / SINGLE_NAME, metadata={"format": "pt"})


def _fingerprint(directory: Path, verifier: Path) -> str:
    """Both sides by name, and the drafter by size and content."""
    digest = hashlib.blake2b(str(verifier.resolve()).encode(), digest_size=6)
    digest.update((directory / SINGLE_NAME).read_bytes())
    return digest.hexdigest()
