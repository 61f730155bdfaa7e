"""Published heads on disk: tensors by name, in safetensors files or in a pickle of tensors.

Whatever is wrong is one sentence that names the file, the tensor and what was expected.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from drafters.vocabulary import DraftVocabulary
from engine.weights.checkpoint import INDEX_NAME
from engine.weights.model_config import read_json
from engine.weights.names import Piece

D2T, T2D = "d2t", "t2d"
"""A smaller draft vocabulary: offsets from draft ids to tokens, and which tokens it holds."""

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor that can be read, and the file it is in."""

    file: Path
    read: Callable[[], Tensor]


class StoredTensors:
    """The tensors of a head's directory, by their canonical names."""

    def __init__(
        self,
        directory: Path,
        names: Sequence[str],
        *,
        canonical: Callable[[str], str] = lambda name: name,
    ) -> None:
        """Open the files of an index, else the first of ``names`` that is there.

        Raises:
            ValueError: no such file, or one that is damaged; one sentence.
        """
        self._directory = directory
        self._stored: dict[str, _Stored] = {}
        for file in _files(directory, names):
            is_safe = file.suffix == ".safetensors"
            for name, read in (_open_safetensors if is_safe else _open_pickle)(file):
                self._stored[canonical(name)] = _Stored(file, read)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._stored

    @property
    def names(self) -> Collection[str]:
        """Canonical names of all tensors."""
        return self._stored.keys()

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._stored[name].file

    def check(self, known: Collection[str], *, what: str) -> None:
        """Refuse tensors that ``what`` has no place for. Raises ``ValueError``."""
        for name, stored in self._stored.items():
            if name not in known and not name.endswith("rotary_emb.inv_freq"):
                raise ValueError(
                    f"{stored.file}: tensor {name} has no place in {what} as config.json describes "
                    "it"
                )

    def read(self, piece: Piece, *, integer: bool = False) -> Tensor:
        """The tensor, with the shape and kind it must have. Raises ``ValueError``."""
        stored = self._stored.get(piece.name)
        if stored is None:
            raise ValueError(
                f"{self._directory}: tensor {piece.name} of shape {list(piece.shape)} is missing"
            )
        tensor = stored.read()
        if tuple(tensor.shape) != piece.shape:
            raise ValueError(
                f"{stored.file}: tensor {piece.name} has shape {list(tensor.shape)}, but "
                f"config.json asks for {list(piece.shape)}"
            )
        if tensor.is_floating_point() == integer:
            raise ValueError(
                f"{stored.file}: tensor {piece.name} is stored as {tensor.dtype}: allowed are "
                f"{'integers and booleans' if integer else 'unquantised floating-point numbers'}"
            )
        return tensor


def read_vocabulary(tensors: StoredTensors, *, size: int, vocab_size: int) -> DraftVocabulary:
    """What ``d2t`` and ``t2d`` say; the whole vocabulary where there are none.

    Raises:
        ValueError: they are missing, contradict each other or leave the vocabulary.
    """
    if size == vocab_size and D2T not in tensors:
        return DraftVocabulary.whole(vocab_size)
    d2t = tensors.read(Piece(D2T, (size,)), integer=True)
    file = tensors.file_of(D2T)
    try:
        vocabulary = DraftVocabulary.from_offsets(d2t, vocab_size)
    except ValueError as error:
        raise ValueError(f"{file}: tensor {D2T}: {error}") from error
    if T2D in tensors:
        t2d = tensors.read(Piece(T2D, (vocab_size,)), integer=True)
        if not torch.equal(t2d.bool(), vocabulary.membership):
            raise ValueError(f"{file}: tensor {T2D} names other tokens than tensor {D2T}")
    return vocabulary


def set_parameter(module: nn.Module, name: str, value: Tensor) -> None:
    """Put a loaded tensor in the place of a meta parameter; it is frozen."""
    owner, _, leaf = name.rpartition(".")
    assert value.shape == module.get_parameter(name).shape, name
    setattr(module.get_submodule(owner), leaf, nn.Parameter(value, requires_grad=False))


def _files(directory: Path, names: Sequence[str]) -> list[Path]:
    index = directory / INDEX_NAME
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} is not a JSON object with a weight_map")
        files = [directory / str(name) for name in sorted(set(weight_map.values()))]
        for file in files:
            if not file.is_file():
                raise ValueError(f"{index} places tensors in {file.name}, which is missing")
        return files
    for name in names:
        if (directory / name).is_file():
            return [directory / name]
    *others, last = [names[0], INDEX_NAME, *names[1:]]
    raise ValueError(f"{directory} holds none of {', '.join(others)} and {last}")


def _open_safetensors(file: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    try:
        handle: Any = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    for name in handle.keys():  # noqa: SIM118 - the handle is no mapping
        yield name, partial(handle.get_tensor, name)


def _open_pickle(file: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Only tensors are unpickled: a file that would run code is refused."""
    try:
        tensors = torch.load(file, map_location=_CPU, weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{file} is not a whole file of tensors: {reason}") from error
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ValueError(f"{file} must hold tensors by name and nothing else")
    for name in tensors:
        yield name, partial(tensors.__getitem__, name)
