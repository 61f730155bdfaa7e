"""Which vocabularies contradict each other, and which are only of another size."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafters.vocabulary_check import check_vocabulary, first_difference
from tests.support.tiny import LLAMA2, write_checkpoint


def test_the_same_tokenizer_is_accepted(tmp_path: Path) -> None:
    """Catches a check that refuses everything."""
    verifier = write_checkpoint(tmp_path / "verifier", LLAMA2)
    drafter = write_checkpoint(tmp_path / "drafter", LLAMA2)
    check_vocabulary(drafter, verifier)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({0: "a", 1: "b"}, {0: "a", 1: "b"}, None),
        ({0: "a", 1: "b", 2: "<pad>"}, {0: "a", 1: "b"}, None),
        ({0: "a"}, {0: "a", 1: "b"}, None),
        ({0: "a", 1: "b"}, {0: "a", 1: "c"}, 1),
        ({0: "a", 2: "b"}, {0: "a", 1: "b"}, 1),
        ({0: "a", 1: "b", 2: "c"}, {0: "c", 1: "b", 2: "a"}, 0),
        ({3: "a"}, {5: "a"}, 3),
    ],
)
def test_only_contradictions_count(
    ours: dict[int, str], theirs: dict[int, str], expected: int | None
) -> None:
    """Holes and other sizes are no contradiction; a text at two ids is one."""
    assert first_difference(ours, theirs) == expected


@pytest.mark.parametrize("content", ["{}", '{"model": {"vocab": 3}, "added_tokens": []}', "["])
def test_a_broken_tokenizer_file_is_told_in_one_sentence(tmp_path: Path, content: str) -> None:
    """Catches a traceback at start."""
    verifier = write_checkpoint(tmp_path / "verifier", LLAMA2)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        check_vocabulary(tmp_path, verifier)
