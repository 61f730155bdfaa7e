"""Workloads: prompts as chat conversations, refused in one sentence when they cannot be used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.bench import workloads
from launch.bench.workloads import (
    Prompt,
    check_lengths,
    load_conversations,
    load_workload,
    parse_workload,
)


class LetterTokenizer:
    """A token per letter of the last message; a system message counts 1000."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        system = [1000 for message in messages if message["role"] == "system"]
        return [*system, *map(ord, messages[-1]["content"])]


def written(tmp_path: Path, *lines: object) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def test_human_eval_is_the_raw_prompt_as_the_users_turn() -> None:
    prompts = load_workload("humaneval", LetterTokenizer())
    assert len(prompts) == 164
    assert prompts[0].name == "HumanEval/0"
    assert "".join(map(chr, prompts[0].token_ids)).startswith("from typing import List\n")


def test_limit_takes_the_first() -> None:
    assert [p.name for p in load_workload("humaneval", LetterTokenizer(), limit=2)] == [
        "HumanEval/0",
        "HumanEval/1",
    ]


def test_jsonl_line_is_a_prompt_turns_or_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]
    file = written(
        tmp_path,
        {"prompt": "a"},
        {"question_id": 81, "turns": ["b", "ignored"]},
        {"task_id": "t", "messages": messages},
    )
    prompts = load_workload(file, LetterTokenizer())
    assert [p.name for p in prompts] == ["prompts/1", "81", "t"]
    assert [p.token_ids for p in prompts] == [(97,), (98,), (1000, 99)]


@pytest.mark.parametrize("line", [{}, [], {"prompt": 3}, {"turns": []}, {"prompt": ""}])
def test_line_without_a_prompt_is_named(tmp_path: Path, line: object) -> None:
    file = written(tmp_path, {"prompt": "a"}, line)
    with pytest.raises(ValueError, match=r"prompts\.jsonl line 2 needs 'prompt'"):
        load_workload(file, LetterTokenizer())


def test_broken_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt"\n')
    with pytest.raises(ValueError, match=r"x\.jsonl line 2 is not JSON"):
        load_workload(str(file), LetterTokenizer())


def test_unknown_workload_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--workload must be one of humaneval, code_editing"):
        load_workload("mmlu", LetterTokenizer())
    with pytest.raises(ValueError, match="has no prompts"):
        load_workload(written(tmp_path), LetterTokenizer())


def test_prompt_that_leaves_no_room_is_named() -> None:
    prompts = [Prompt(name="p", token_ids=tuple(range(10)))]
    check_lengths(prompts, max_tokens=6, max_model_len=16)
    with pytest.raises(ValueError, match="prompt p has 10 tokens, which with --max-tokens 7"):
        check_lengths(prompts, max_tokens=7, max_model_len=16)


def test_code_editing_shows_the_whole_solution_and_one_request() -> None:
    (name, (message,)), *_ = load_conversations("code_editing", limit=1)
    assert name == "edit/HumanEval/0"
    assert message["content"].startswith("Rename the function has_close_elements")
    assert "return False" in message["content"]


def test_spec_bench_takes_the_categories_in_turn(tmp_path: Path) -> None:
    lines = [{"question_id": i, "category": c, "turns": [c]} for i, c in enumerate(("stem", "rag"))]
    lines += [{"question_id": i, "category": "writing", "turns": ["w"]} for i in (7, 8)]
    (tmp_path / "specbench.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    spec = parse_workload("mt_bench", data_dir=tmp_path)
    assert [name for name, _ in load_conversations(spec)] == ["7", "0", "8"]
    with pytest.raises(ValueError, match=r"'math500' needs math500\.jsonl in --data-dir"):
        load_conversations(parse_workload("math500", data_dir=tmp_path))


def test_a_dataset_on_the_hub_is_its_first_jsonl_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, {"prompt": "a"})

    def download(name: str, **_: object) -> str:
        if name != "someone/questions":
            raise OSError
        return str(tmp_path)

    monkeypatch.setattr(workloads, "snapshot_download", download)
    assert [name for name, _ in load_conversations("someone/questions")] == ["prompts/1"]
    with pytest.raises(ValueError, match="the hub has no such dataset or cannot be reached"):
        load_conversations("nobody/nothing")
