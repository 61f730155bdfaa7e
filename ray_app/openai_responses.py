"""Replies of OpenAI's HTTP API as pydantic models, with vLLM's extra fields and ours."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(BaseModel):
    """What was cheap about a prompt."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens that a request cost; the end-of-text token counts as output."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class SourceRun(BaseModel):
    """Neighbouring text of one source: copy, neural or verifier."""

    source: str
    text: str


class TopLogprob(BaseModel):
    """An alternative at a position of a chat's answer."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A token of a chat's answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """OpenAI's wrapping."""

    content: list[ChatLogprob]


class CompletionLogprobs(BaseModel):
    """The older form, lists side by side; a prompt's first token has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionCallOut(BaseModel):
    """A call that the model makes."""

    name: str
    arguments: str


class ToolCallOut(BaseModel):
    """OpenAI's wrapping of a call; ``index`` in streams only."""

    index: int | None = None
    id: str
    type: Literal["function"] = "function"
    function: FunctionCallOut


class AssistantMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[ToolCallOut] | None = None


class _AnyChoice(BaseModel):
    index: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """vLLM's: the stop string or token id that ended the answer."""
    sources: list[SourceRun] | None = None
    """Ours, with ``return_sources``."""


class ChatChoice(_AnyChoice):
    """One of a chat's answers."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None = None


class Delta(BaseModel):
    """What a chunk adds; absent parts are left out."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallOut] | None = None


class ChatChunkChoice(_AnyChoice):
    """A piece of a chat's answer."""

    delta: Delta
    logprobs: ChatLogprobs | None = None


class CompletionChoice(_AnyChoice):
    """A completion, or a piece of one."""

    text: str
    logprobs: CompletionLogprobs | None = None


class _AnyReply(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage | None = None
    metrics: dict[str, Any] | None = None
    """vLLM's ``metrics.speculative_decoding`` and ours; in a stream with the usage."""


class ChatCompletion(_AnyReply):
    """A whole answer."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatCompletionChunk(_AnyReply):
    """One event of a stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class Completion(_AnyReply):
    """A whole completion, or one event of a stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "switchsteer"
    max_model_len: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(BaseModel):
    """Reply of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(BaseModel):
    """Reply of ``/detokenize``."""

    prompt: str


class ErrorDetail(BaseModel):
    """What went wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """OpenAI's wrapping of an error."""

    error: ErrorDetail
