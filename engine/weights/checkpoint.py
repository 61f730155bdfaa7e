"""A directory of safetensors files, read slice by slice: a rank reads only what it keeps.

Whatever is wrong with the files (missing, cut off, other shapes) is told in one sentence that names
the file, the tensor and what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import ModelConfig
from engine.weights.names import Piece, expected_names, is_harmless
from parallel.plan import Shard

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_STORED_DTYPES = ("F64", "F32", "F16", "BF16")


class Checkpoint:
    """The tensors of one model directory; files are opened on first use and stay memory-mapped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Path, Any] = {}
        self._file_of = self._read_index()

    def check_names(self, config: ModelConfig) -> None:
        """Refuse tensors that the model has no place for.

        Raises:
            ValueError: names the first such tensor and its file.
        """
        expected = expected_names(config)
        for name, file in self._file_of.items():
            if name not in expected and not is_harmless(name, config):
                raise ValueError(
                    f"{file}: tensor {name} has no place in a {config.architecture} model of "
                    f"{config.num_layers} layers as config.json describes it"
                )

    def check_piece(self, piece: Piece) -> None:
        """Refuse a tensor that is missing, misshapen, or stored in a dtype we do not read.

        Raises:
            ValueError: names the file, the tensor and the expected shape.
        """
        entry = self._slice(piece)
        found = tuple(entry.get_shape())
        if found != piece.shape:
            raise ValueError(
                f"{self._file_of[piece.name]}: tensor {piece.name} has shape {list(found)}, but "
                f"config.json asks for {list(piece.shape)}"
            )
        if entry.get_dtype() not in _STORED_DTYPES:
            raise ValueError(
                f"{self._file_of[piece.name]}: tensor {piece.name} is stored as "
                f"{entry.get_dtype()}: allowed are {', '.join(_STORED_DTYPES)}"
            )

    def read(self, pieces: Iterable[Piece], shard: Shard, *, dtype: torch.dtype) -> Tensor:
        """This rank's part of the pieces, one under the other: cast to ``dtype``, contiguous."""
        pieces = tuple(pieces)
        if shard.style.dim is None:
            (piece,) = pieces
            return self._cast(piece, slice(None), dtype)
        if shard.style.dim == 1:
            (piece,) = pieces
            parts = [self._cast(piece, (slice(None), _as_slice(run)), dtype) for run in shard.runs]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return self._read_rows(pieces, shard, dtype=dtype)

    def _read_rows(self, pieces: tuple[Piece, ...], shard: Shard, *, dtype: torch.dtype) -> Tensor:
        """Copy the overlap of every run with every piece; runs are rows of the merged tensor."""
        rows = torch.empty((shard.length, *pieces[0].shape[1:]), dtype=dtype)
        filled = 0
        for run in shard.runs:
            offset = 0
            for piece in pieces:
                start = max(run.start - offset, 0)
                stop = min(run.stop - offset, piece.shape[0])
                if start < stop:
                    part = self._slice(piece)[start:stop]
                    rows[filled : filled + stop - start].copy_(part)
                    filled += stop - start
                offset += piece.shape[0]
        assert filled == shard.length
        return rows

    def _cast(self, piece: Piece, key: Any, dtype: torch.dtype) -> Tensor:
        part: Tensor = self._slice(piece)[key]
        return part.to(dtype).contiguous().clone()

    def _slice(self, piece: Piece) -> Any:
        file = self._file_of.get(piece.name)
        if file is None:
            raise ValueError(
                f"{self._directory}: tensor {piece.name} of shape {list(piece.shape)} is missing"
            )
        try:
            return self._open(file).get_slice(piece.name)
        except SafetensorError as error:
            raise ValueError(
                f"{file}: tensor {piece.name} of shape {list(piece.shape)} cannot be read: {error}"
            ) from error

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
        return self._files[file]

    def _read_index(self) -> dict[str, Path]:
        index = self._directory / INDEX_NAME
        single = self._directory / SINGLE_NAME
        if not index.is_file():
            if not single.is_file():
                raise ValueError(f"{self._directory} holds neither {SINGLE_NAME} nor {INDEX_NAME}")
            return dict.fromkeys(self._open(single).keys(), single)
        try:
            weight_map = json.loads(index.read_text())["weight_map"].items()
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{index} is not a JSON object with a weight_map") from error
        files = {name: self._directory / str(file) for name, file in weight_map}
        for name, file in files.items():
            if not file.is_file():
                raise ValueError(f"{index} places tensor {name} in {file.name}, which is missing")
        return files


def _as_slice(run: range) -> slice:
    return slice(run.start, run.stop)
