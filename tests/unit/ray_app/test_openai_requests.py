"""What cannot be honoured is refused by name; what changes nothing is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ray_app.openai_requests import ChatCompletionRequest, CompletionRequest

MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add"}}


def _parse(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})


def _complete(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "hello", **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "differ: send one"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"n": True}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop has 17 strings; at most 16"),
        ({"stream_options": {"include_usage": True}}, "only allowed with stream true"),
        ({"stream": True, "stream_options": {"every": 1}}, "every"),
        ({"top_logprobs": 3}, "top_logprobs is only allowed with logprobs true"),
        ({"response_format": {"type": "json_schema"}}, "json_schema goes with type json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tool_choice": "auto"}, "tool_choice is only allowed with tools"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "subtract"}},
            },
            "tool_choice names 'subtract'; the tools are add",
        ),
        (
            {"tools": [TOOL], "response_format": {"type": "json_object"}},
            "cannot be asked for together",
        ),
        ({"continue_final_message": True}, "needs a last message of role assistant"),
        ({"speculative": {"depth": 3}}, "depth"),
        ({"speculative": {"num_speculative_tokens": 0}}, "num_speculative_tokens"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": None}]}, "role 'user' needs content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
    ],
)
def test_impossible_bodies_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        _parse(**fields)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ""}, "prompt must not be empty"),
        ({"prompt": []}, "prompt must not be empty"),
        ({"prompt": ["a", ""]}, "prompt must not be empty"),
        ({"best_of": 3}, "best_of other than n"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True, "stream": True}, "echo is only allowed without stream"),
    ],
)
def test_impossible_completions_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        _complete(**fields)
    assert words in str(refusal.value)


def test_both_names_of_the_limit_work() -> None:
    assert _parse(max_tokens=3).token_limit == 3
    assert _parse(max_completion_tokens=4).token_limit == 4
    assert _parse(max_tokens=4, max_completion_tokens=4).token_limit == 4
    assert _parse().token_limit is None
    assert _complete().token_limit == 16


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    request = _parse(messages=[{"role": "user", "content": parts}])
    assert request.messages[0].text == "abc"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_every_form_of_prompt_is_a_list(prompt: Any, prompts: Any) -> None:
    assert _complete(prompt=prompt).prompts == prompts


def test_what_changes_nothing_is_accepted() -> None:
    _parse(user="u", metadata={"a": "b"}, safety_identifier="x", prompt_cache_key="y")
    _parse(messages=[{"role": "user", "content": "x", "name": "y"}])
