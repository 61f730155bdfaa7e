"""Text to token ids and back, chat prompts, and text that streams without half characters.

A thin class over a Hugging Face fast tokenizer (``tokenizer.json``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from engine.weights.model_config import read_eos_token_ids

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are not, or not yet, a character."""

Message = Mapping[str, Any]
"""A chat message: ``role``, ``content`` and what the model's template knows beside them."""


class Tokenizer:
    """A model's tokenizer with the ids that end its answers."""

    def __init__(self, inner: PreTrainedTokenizerFast, eos_token_ids: tuple[int, ...]) -> None:
        self._inner = inner
        self.eos_token_ids = eos_token_ids

    @property
    def inner(self) -> PreTrainedTokenizerFast:
        """Hugging Face's tokenizer, for libraries that ask for one."""
        return self._inner

    @property
    def chat_template(self) -> str | None:
        """How conversations are written, if the model says so."""
        template = self._inner.chat_template
        return template if isinstance(template, str) else None

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special tokens included."""
        return len(self._inner)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with whatever the model expects in front of one."""
        ids: list[int] = self._inner.encode(text)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids, by default with special tokens left out."""
        text = self._inner.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def encode_word(self, text: str) -> list[int]:
        """Token ids of a piece of text, with nothing in front of it."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=False)
        return ids

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer, or to go on with one.

        Raises:
            ValueError: the model has no chat template, or the template refuses the messages.
        """
        if self._inner.chat_template is None:
            raise ValueError("this model has no chat template: send a plain prompt instead")
        options = {"add_generation_prompt": not continue_final_message, **template_arguments}
        try:
            ids = self._inner.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                continue_final_message=continue_final_message,
                tokenize=True,
                return_dict=False,
                **options,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"the model's chat template refuses the messages: {error}") from error
        return cast("list[int]", ids)

    def stream(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A decoder for one answer that arrives piece by piece."""
        return Detokenizer(self, skip_special_tokens=skip_special_tokens)


class Detokenizer:
    """Decodes one answer as it grows; the pieces joined are the decoding of all its ids.

    A character may be spread over several tokens: its piece comes with the last of them. Only the
    ids since the last but one complete character boundary are decoded again.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
        self._window: list[int] = []
        self._boundary = 0
        """Ids of the window up to which the text was complete when it was last looked at."""
        self._emitted = 0
        """Characters of the window's text that were handed out."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new ids; return the text that they complete, which may be empty."""
        self._window += token_ids
        text = self._decode(self._window)
        stable = text.removesuffix(_INCOMPLETE)
        piece = stable[self._emitted :]
        self._emitted = max(self._emitted, len(stable))
        if len(stable) == len(text):
            self._advance()
        return piece

    def finish(self) -> str:
        """What was held back: bytes at the very end that never became a character."""
        piece = self._decode(self._window)[self._emitted :]
        self._emitted += len(piece)
        return piece

    def _advance(self) -> None:
        """Drop the ids before the previous boundary; the ids since then stay as left context.

        Some tokenizers decode a leading word without its space, so a window may not start at new
        ids.
        """
        del self._window[: self._boundary]
        self._boundary = len(self._window)
        self._emitted = len(self._decode(self._window))


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer in a model directory.

    Raises:
        ValueError: the directory has no ``tokenizer.json``.
    """
    if not (directory / "tokenizer.json").is_file():
        raise ValueError(f"{directory} holds no tokenizer.json: only fast tokenizers are supported")
    inner = PreTrainedTokenizerFast.from_pretrained(directory)
    eos = list(read_eos_token_ids(directory))
    if inner.eos_token_id is not None:
        eos.append(inner.eos_token_id)
    return Tokenizer(inner, tuple(dict.fromkeys(eos)))
