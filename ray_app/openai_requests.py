"""Bodies of OpenAI's HTTP API that we take, as pydantic models, with vLLM's extra fields.

A field that cannot be honoured is refused by name; nothing is silently dropped. What values a
sampling field may have is said once, by ``engine.sampling``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ray_app.openai_messages import ChatMessage, NamedToolChoice, Strict, Tool

MAX_CHOICES = 64
"""``n`` at most."""
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
"""Characters of a stop string."""


class StreamOptions(Strict):
    """What a stream carries beside text."""

    include_usage: bool = False
    """One more chunk at the end, with usage and metrics."""
    continuous_usage_stats: bool = False
    """vLLM's: every chunk carries the usage so far."""


class SpeculativeOptions(Strict):
    """How this request speculates; keys left out are the server's."""

    enabled: bool = True
    method: str | None = None
    drafter: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=64)


class JsonSchema(Strict):
    """OpenAI's wrapping of a schema."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Strict):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("response_format: json_schema goes with type json_schema, and only it")
        return self


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class GenerationBody(Strict):
    """What chats and completions have in common."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stop: StopString | list[StopString] | None = Field(default=None)
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculative: SpeculativeOptions | None = None
    return_sources: bool = False
    """Ours: who proposed each piece of text."""
    user: str | None = None
    metadata: dict[str, str] | None = None
    """Accepted, because they change nothing, as are the next two."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def shows_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def always_shows_usage(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """One or several."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream true")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise ValueError(
                f"stop has {len(self.stop_strings)} strings; at most {MAX_STOP_STRINGS}"
            )
        return self


class ChatCompletionRequest(GenerationBody):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError(
                f"max_tokens {self.max_tokens} and max_completion_tokens "
                f"{self.max_completion_tokens} differ: send one of them"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is only allowed with logprobs true")
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs a last message of role assistant")
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        choice = self.tool_choice
        if choice not in (None, "none") and not names:
            raise ValueError("tool_choice is only allowed with tools")
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise ValueError(
                f"tool_choice names {choice.function.name!r}; the tools are {', '.join(names)}"
            )
        if self.response_format is not None and self.response_format.type != "text" and names:
            raise ValueError("response_format and tools cannot be asked for together")

    @property
    def token_limit(self) -> int | None:
        """The larger name of the two for the same limit."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationBody):
    """Body of ``POST /v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError("best_of other than n is not supported: leave it out")
        if not self.prompts or not all(self.prompts):
            raise ValueError("prompt must not be empty")
        if self.echo and self.stream:
            raise ValueError("echo is only allowed without stream")
        return self

    @property
    def token_limit(self) -> int:
        """OpenAI's default is 16 tokens."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Always a list of prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        token_ids = [item for item in self.prompt if isinstance(item, int)]
        return [token_ids] if token_ids else self.prompt  # type: ignore[return-value]


class TokenizeRequest(Strict):
    """Body of ``POST /tokenize``: a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("send either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]
