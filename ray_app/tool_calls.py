"""Calls of functions: how a model's template writes them, read back as the text comes in.

Two forms are known. Hermes and Qwen write ``<tool_call>``, ``{"name": ..., "arguments": ...}`` and
``</tool_call>`` for each call; Llama 3 writes one JSON object with ``name`` and ``parameters`` as
its whole answer. Which one a model uses is read from its chat template. Text in front of a call is
passed on; what merely looks like a call and does not parse is text.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from engine.grammar import call_grammar
from engine.tokenizer import Tokenizer
from ray_app.openai_messages import NamedToolChoice
from ray_app.openai_requests import ChatCompletionRequest
from ray_app.openai_responses import FunctionCallOut, ToolCallOut

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"


class ToolFormat(Enum):
    """How calls are written."""

    HERMES = "hermes"
    LLAMA3 = "llama3"

    @property
    def arguments_key(self) -> str:
        """The key of a call's arguments."""
        return "arguments" if self is ToolFormat.HERMES else "parameters"

    def grammar(self, body: ChatCompletionRequest) -> str | None:
        """What the answer must match where a call is demanded."""
        choice = body.tool_choice
        if choice not in ("required",) and not isinstance(choice, NamedToolChoice):
            return None
        named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        functions = [
            tool.function for tool in body.tools or () if named in (None, tool.function.name)
        ]
        schemas = [self._call_schema(f.name, f.parameters) for f in functions]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        tags = (_OPEN, _CLOSE) if self is ToolFormat.HERMES else ("", "")
        return call_grammar(schema, *tags)

    def _call_schema(self, name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
        arguments = parameters or {"type": "object"}
        return {
            "type": "object",
            "properties": {"name": {"const": name}, self.arguments_key: arguments},
            "required": ["name", self.arguments_key],
            "additionalProperties": False,
        }


def tool_format(body: ChatCompletionRequest, tokenizer: Tokenizer) -> ToolFormat | None:
    """How this model writes calls; None when the body offers no functions.

    Raises:
        ValueError: the model's chat template knows no functions.
    """
    if not body.tools or body.tool_choice == "none":
        return None
    template = tokenizer.chat_template or ""
    if _OPEN in template:
        return ToolFormat.HERMES
    if "tools" in template and ("python_tag" in template or '"parameters"' in template):
        return ToolFormat.LLAMA3
    raise ValueError("tools: this model's chat template knows no functions")


@dataclass(slots=True)
class Found:
    """Text to be shown, and complete calls."""

    text: str = ""
    calls: list[ToolCallOut] = field(default_factory=list)

    def __iadd__(self, other: Found) -> Found:
        """What came later."""
        self.text += other.text
        self.calls += other.calls
        return self


class ToolCallReader:
    """Separates one answer's text from its calls, piece by piece; None reads no calls."""

    def __init__(self, form: ToolFormat | None) -> None:
        self._form = form
        self._held = ""
        self.num_calls = 0

    def push(self, text: str) -> Found:
        """Take in text; returns what is certain."""
        if self._form is None:
            return Found(text)
        self._held += text
        if self._form is ToolFormat.HERMES:
            return self._read_tagged()
        return self._read_plain()

    def finish(self) -> Found:
        """The answer has ended: what is held is a call or text."""
        text, self._held = self._held, ""
        if self._form is None or not text:
            return Found(text)
        if self._form is ToolFormat.LLAMA3:
            calls = self._parse(text.strip().removeprefix(_PYTHON_TAG))
        else:
            calls = self._parse(text.removeprefix(_OPEN)) if text.startswith(_OPEN) else []
        return Found("", calls) if calls else Found(text)

    def _read_tagged(self) -> Found:
        found = Found()
        while True:
            start = self._held.find(_OPEN)
            if start < 0:
                kept = _overlap(self._held, _OPEN)
                shown = len(self._held) - kept
                found.text += self._held[:shown]
                self._held = self._held[shown:]
                return self._without_blanks(found)
            found.text += self._held[:start]
            self._held = self._held[start:]
            end = self._held.find(_CLOSE)
            if end < 0:
                return self._without_blanks(found)
            whole = self._held[: end + len(_CLOSE)]
            self._held = self._held[len(whole) :]
            calls = self._parse(whole[len(_OPEN) : end])
            found += Found("", calls) if calls else Found(whole)

    def _without_blanks(self, found: Found) -> Found:
        """Line feeds between calls are no content."""
        if self.num_calls and not found.text.strip():
            found.text = ""
        return found

    def _read_plain(self) -> Found:
        """An answer that begins like an object may be a call; any other is text."""
        begun = self._held.lstrip()
        if not begun or begun.startswith("{") or _PYTHON_TAG.startswith(begun[: len(_PYTHON_TAG)]):
            return Found()
        text, self._held = self._held, ""
        return Found(text)

    def _parse(self, text: str) -> list[ToolCallOut]:
        """The calls in a text; none if it is not all calls."""
        assert self._form is not None
        key = self._form.arguments_key
        calls = []
        for part in text.split(";") if self._form is ToolFormat.LLAMA3 else [text]:
            try:
                fields = json.loads(part)
                name, arguments = fields["name"], fields.get(key, fields.get("arguments", {}))
            except (ValueError, TypeError, KeyError, AttributeError):
                return []
            calls.append(self._call(str(name), arguments))
        return calls

    def _call(self, name: str, arguments: Any) -> ToolCallOut:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        self.num_calls += 1
        return ToolCallOut(
            index=self.num_calls - 1,
            id=f"call_{uuid.uuid4().hex[:24]}",
            function=FunctionCallOut(name=name, arguments=text),
        )


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of the text that may be the beginning of the tag."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)
