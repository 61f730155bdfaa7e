"""Text that streams without half characters, and chat prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.tiny import EOS_ID, VOCAB_SIZE, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token per byte: every character beyond ASCII is spread over tokens."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return load_tokenizer(directory)


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """The ids in runs of the given sizes, then one by one."""
    runs = []
    for size in sizes + [1] * len(ids):
        runs.append(ids[:size])
        ids = ids[size:]
    return [run for run in runs if run]


@given(text=st.text(max_size=12), sizes=st.lists(st.integers(1, 6), max_size=6))
def test_pieces_join_to_the_text_and_hold_whole_characters(
    tokenizer: Tokenizer, text: str, sizes: list[int]
) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push(run) for run in cut(tokenizer.encode(text), sizes)]
    assert "".join([*pieces, stream.finish()]) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30))
def test_any_ids_stream_to_what_they_decode_to(tokenizer: Tokenizer, ids: list[int]) -> None:
    """A model may emit bytes that are no text at all; nothing may be lost or repeated."""
    stream = tokenizer.stream()
    pieces = [stream.push([token_id]) for token_id in ids]
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids)


def test_text_comes_as_soon_as_it_is_complete(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    assert [stream.push([token_id]) for token_id in tokenizer.encode("aé")] == ["a", "", "é"]


def test_special_tokens_are_not_text(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    assert stream.push([*tokenizer.encode("ok"), EOS_ID]) == "ok"
    assert stream.finish() == ""


def test_an_answer_ends_with_the_turn(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_ids == (EOS_ID,)
    assert tokenizer.vocab_size == VOCAB_SIZE


def test_chat_opens_the_assistants_turn(tokenizer: Tokenizer) -> None:
    ids = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "user\nhi\nassistant\n"
    assert ids.count(EOS_ID) == 1


def test_a_model_without_chat_template_says_so(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        load_tokenizer(tmp_path).chat([{"role": "user", "content": "hi"}])


def test_a_template_that_refuses_is_the_users_error(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="refuses the messages: roles must alternate"):
        load_tokenizer(tmp_path).chat([{"role": "user", "content": "hi"}])


def test_end_ids_of_all_three_files_are_joined(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 5]}))
    assert load_tokenizer(tmp_path).eos_token_ids == (6, 5, EOS_ID)


def test_a_directory_without_fast_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
