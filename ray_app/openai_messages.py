"""Messages and functions in the bodies of OpenAI's chats."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """No unknown fields, no conversions such as "5" for 5."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(Strict):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    """Which function an assistant called."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call in an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"messages: a message of role {self.role!r} needs content")
        return self

    @property
    def text(self) -> str | None:
        """The content as one text."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """OpenAI's wrapping of a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    """The name in a ``tool_choice``."""

    name: str


class NamedToolChoice(Strict):
    """The one function that must be called."""

    type: Literal["function"]
    function: NamedFunction
