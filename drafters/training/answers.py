"""Generated answers on disk: they take most of a training, so a repeated run reuses them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path


class AnswerFile:
    """One JSON line per finished answer, keyed by the model, the prompt and the length limit."""

    def __init__(self, path: Path, *, model_id: str, max_tokens: int) -> None:
        """Read what is there; a line that an interrupted run left half written is dropped."""
        self._path = path
        self._context = f"{model_id}\n{max_tokens}\n"
        self._answers: dict[str, tuple[int, ...]] = {}
        if path.exists():
            complete = path.read_text().rpartition("\n")[0]
            for line in complete.splitlines():
                entry = json.loads(line)
                self._answers[entry["key"]] = tuple(entry["output_ids"])
            path.write_text(complete + "\n" if complete else "")

    def get(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """The answer to a prompt, or None."""
        return self._answers.get(self._key(prompt_ids))

    def add(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Keep an answer, on disk at once."""
        key = self._key(prompt_ids)
        self._answers[key] = tuple(output_ids)
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "output_ids": list(output_ids)}) + "\n")

    def _key(self, prompt_ids: Sequence[int]) -> str:
        text = self._context + ",".join(map(str, prompt_ids))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
