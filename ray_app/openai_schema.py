"""The part of OpenAI's HTTP API that we speak, as pydantic models.

Decoding is greedy here, so a field that asks for anything else is refused by name; nothing is
silently dropped. ``temperature`` left out means greedy.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (0,),
    "n": (1,),
    "stop": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
}
"""What a field that we cannot honour may say beside null: the value that changes nothing."""


class _Strict(BaseModel):
    """No unknown fields, no conversions such as "5" for 5."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(_Strict):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(_Strict):
    """What a stream carries beside text."""

    include_usage: bool = False


class ChatCompletionRequest(_Strict):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    top_p: float | None = Field(default=None, gt=0, le=1)
    """No influence on greedy decoding."""
    seed: int | None = None
    """No influence on greedy decoding."""
    user: str | None = None
    temperature: Any = None
    n: Any = None
    stop: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        for name, neutral in NEUTRAL_VALUES.items():
            value = getattr(self, name)
            if value is not None and not any(_same(value, allowed) for allowed in neutral):
                raise ValueError(
                    f"{name} is not supported yet: leave it out or send {neutral[0]!r}, "
                    f"not {value!r}"
                )
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError(
                f"max_tokens {self.max_tokens} and max_completion_tokens "
                f"{self.max_completion_tokens} differ: send one of them"
            )
        return self

    @property
    def token_limit(self) -> int | None:
        """The larger name of the two for the same limit."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens


def _same(value: Any, allowed: Any) -> bool:
    """Equality that does not take True for 1."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


class Usage(BaseModel):
    """Tokens that a request cost; the end-of-text token counts as output."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


FinishReason = Literal["stop", "length"]


class AssistantMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str


class Choice(BaseModel):
    """One of one answers."""

    index: int = 0
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: None = None


class ChatCompletion(BaseModel):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(BaseModel):
    """What a chunk adds; absent parts are left out."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """A piece of the answer."""

    index: int = 0
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: None = None


class ChatCompletionChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "switchsteer"
    max_model_len: int


class ModelList(BaseModel):
    """Body of ``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    """What went wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Body of every answer that is not a success."""

    error: ErrorDetail
