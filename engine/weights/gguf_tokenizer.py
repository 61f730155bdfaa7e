"""The byte-level BPE tokenizer inside a GGUF file, written as ``tokenizer.json`` and its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL = 3
"""GGUF's token type of special tokens, which are never produced by merging text."""


def save_gguf_tokenizer(file: Path, metadata: dict[str, Any], directory: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.

    Raises:
        ValueError: the file holds a tokenizer of another kind.
    """
    tokenizer = _tokenizer(file, metadata)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    tokens = metadata["tokenizer.ggml.tokens"]
    for role, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{field}_token_id")
        if token_id is not None:
            config[f"{role}_token"] = tokens[token_id]
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)


def _tokenizer(file: Path, metadata: dict[str, Any]) -> Tokenizer:
    kind = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind[0] != "gpt2" or kind[1] not in _SPLITTERS:
        raise ValueError(
            f"{file}: tokenizer {kind[0]} with pre-tokenizer {kind[1]} is not supported in a GGUF "
            f"file: allowed is gpt2 with {', '.join(_SPLITTERS)}; use the model's Hugging Face "
            "directory"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _SPLITTERS[kind[1]]()
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    return tokenizer


def _smollm() -> PreTokenizer:
    """Every digit alone, then GPT-2's split into words."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _qwen2() -> PreTokenizer:
    """Qwen2's and Qwen3's own split: single digits, words with one leading sign, line ends."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITTERS = {"smollm": _smollm, "gpt-2": _gpt2, "qwen2": _qwen2}
