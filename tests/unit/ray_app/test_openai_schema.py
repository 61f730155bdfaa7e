"""What cannot be honoured is refused by name; what changes nothing is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ray_app.openai_schema import NEUTRAL_VALUES, ChatCompletionRequest

MESSAGES = [{"role": "user", "content": "hello"}]


def _parse(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})


@pytest.mark.parametrize("field", NEUTRAL_VALUES)
def test_null_and_the_neutral_value_are_accepted(field: str) -> None:
    for value in (None, *NEUTRAL_VALUES[field]):
        _parse(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7),
        ("temperature", "hot"),
        ("n", 2),
        ("n", True),
        ("stop", "\n"),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{}]),
        ("tool_choice", "auto"),
    ],
)
def test_any_other_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"{field} is not supported yet"):
        _parse(**{field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1},
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"max_tokens": 3, "max_completion_tokens": 4},
        {"top_p": 0},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"every": 1}},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "name": "y"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
    ],
)
def test_impossible_bodies_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _parse(**fields)


def test_both_names_of_the_limit_work() -> None:
    assert _parse(max_tokens=3).token_limit == 3
    assert _parse(max_completion_tokens=4).token_limit == 4
    assert _parse(max_tokens=4, max_completion_tokens=4).token_limit == 4
    assert _parse().token_limit is None


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    request = _parse(messages=[{"role": "user", "content": parts}])
    assert request.messages[0].text == "abc"
