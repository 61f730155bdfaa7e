"""Calls are read from the text as it comes; what does not parse stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_app.tool_calls import Found, ToolCallReader, ToolFormat

HERMES = (
    'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "pi", "arguments": {}}\n</tool_call>'
)
LLAMA = '{"name": "add", "parameters": {"a": 1}}'


def read(form: ToolFormat | None, text: str, cuts: list[int]) -> Found:
    reader, found, start = ToolCallReader(form), Found(), 0
    for cut in sorted({min(cut, len(text)) for cut in cuts}):
        found += reader.push(text[start:cut])
        start = cut
    found += reader.push(text[start:])
    found += reader.finish()
    return found


CUTS = st.lists(st.integers(0, 120), max_size=8)


@given(CUTS)
def test_hermes_calls_come_out_wherever_the_text_is_cut(cuts: list[int]) -> None:
    found = read(ToolFormat.HERMES, HERMES, cuts)
    assert found.text.strip() == "Let me see."
    assert [call.function.name for call in found.calls] == ["add", "pi"]
    assert json.loads(found.calls[0].function.arguments) == {"a": 1}
    assert [call.index for call in found.calls] == [0, 1]
    assert len({call.id for call in found.calls}) == 2


@given(CUTS)
def test_a_llama_answer_that_is_one_object_is_a_call(cuts: list[int]) -> None:
    found = read(ToolFormat.LLAMA3, LLAMA, cuts)
    assert found.text == ""
    [call] = found.calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (None, HERMES),
        (ToolFormat.HERMES, "a < b and <tool_ is no tag"),
        (ToolFormat.HERMES, "<tool_call>\nnot json\n</tool_call>"),
        (ToolFormat.HERMES, '<tool_call>\n{"name": "cut off'),
        (ToolFormat.LLAMA3, '{"answer": 42}'),
        (ToolFormat.LLAMA3, "{not json"),
        (ToolFormat.LLAMA3, "plain text"),
        (ToolFormat.LLAMA3, ""),
    ],
)
@given(cuts=CUTS)
def test_everything_else_is_text_unchanged(
    form: ToolFormat | None, text: str, cuts: list[int]
) -> None:
    """vllm#40875's class: nothing may be lost or doubled."""
    found = read(form, text, cuts)
    assert found.text == text
    assert found.calls == []


def test_plain_text_streams_at_once() -> None:
    reader = ToolCallReader(ToolFormat.LLAMA3)
    assert reader.push("Hel").text == "Hel"
    assert ToolCallReader(ToolFormat.HERMES).push("Hello").text == "Hello"
