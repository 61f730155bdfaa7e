"""Generated answers on disk: they take most of a training, so a repeated run reuses them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path


class AnswerFile:
    """One JSON line per finished answer, keyed by the model, the prompt and the length limit."""

    def __init__(self, path: Path, *, model_id: str, max_tokens: int) -> None:
        """Read what is there; a line that an interrupted run left half written is left out.

        Reading changes nothing, so that several ranks may read at once: the first ``add`` cuts the
        half line off.
        """
        self._path = path
        self._context = f"{model_id}\n{max_tokens}\n"
        self._answers: dict[str, tuple[int, ...]] = {}
        written = path.read_bytes() if path.exists() else b""
        self._whole_bytes = written.rfind(b"\n") + 1
        for line in written[: self._whole_bytes].splitlines():
            entry = json.loads(line)
            self._answers[entry["key"]] = tuple(entry["output_ids"])

    def get(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """The answer to a prompt, or None."""
        return self._answers.get(self._key(prompt_ids))

    def add(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Keep an answer, on disk at once."""
        key = self._key(prompt_ids)
        self._answers[key] = tuple(output_ids)
        line = json.dumps({"key": key, "output_ids": list(output_ids)}).encode() + b"\n"
        with self._path.open("ab") as file:
            file.truncate(self._whole_bytes)
            file.write(line)
        self._whole_bytes += len(line)

    def _key(self, prompt_ids: Sequence[int]) -> str:
        text = self._context + ",".join(map(str, prompt_ids))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
