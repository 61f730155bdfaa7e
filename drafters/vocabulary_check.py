"""Whether a drafter's token ids mean what the verifier's mean; checked once, before any drafting.

A drafter whose ids are permuted would still be harmless (the verifier decides), but every draft
would be wrong and no output would show it. Tables of different size are fine: checkpoints pad their
vocabularies differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.weights.model_config import read_json


def check_vocabulary(drafter: Path, verifier: Path) -> None:
    """Compare the tokenizers in two model directories.

    Raises:
        ValueError: an id that both know stands for different texts, or a text that both know has
            different ids; one sentence with the first such id and both texts.
    """
    ours, theirs = read_vocabulary(drafter), read_vocabulary(verifier)
    token_id = first_difference(ours, theirs)
    if token_id is not None:
        raise ValueError(
            f"the drafter {drafter} has another vocabulary than the verifier {verifier}: id "
            f"{token_id} is {_text(ours, token_id)} in the drafter but {_text(theirs, token_id)} "
            "in the verifier, and a text that both know must have the same id"
        )


def first_difference(ours: Mapping[int, str], theirs: Mapping[int, str]) -> int | None:
    """The lowest id at which two vocabularies (id to text) contradict each other, or None."""
    their_ids = {text: token_id for token_id, text in theirs.items()}
    contradictions = (
        min(token_id, their_ids.get(text, token_id))
        for token_id, text in ours.items()
        if theirs.get(token_id, text) != text or their_ids.get(text, token_id) != token_id
    )
    return min(contradictions, default=None)


def read_vocabulary(directory: Path) -> dict[int, str]:
    """Id to text of every token in ``tokenizer.json``, added and special ones included.

    Format: Hugging Face's ``tokenizers``; ``model.vocab`` maps text to id (BPE, WordPiece) or lists
    [text, score] in the order of the ids (Unigram), ``added_tokens`` lists id and content.

    Raises:
        ValueError: the file is missing or holds no vocabulary of that kind.
    """
    file = directory / "tokenizer.json"
    content = read_json(file)
    try:
        vocabulary = _model_vocabulary(content["model"]["vocab"])
        added = {int(token["id"]): str(token["content"]) for token in content["added_tokens"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{file} holds no vocabulary: it needs model.vocab and added_tokens"
        ) from error
    return vocabulary | added


def _model_vocabulary(vocabulary: Any) -> dict[int, str]:
    if isinstance(vocabulary, list):
        return {token_id: str(entry[0]) for token_id, entry in enumerate(vocabulary)}
    return {int(token_id): str(text) for text, token_id in vocabulary.items()}


def _text(vocabulary: Mapping[int, str], token_id: int) -> str:
    return repr(vocabulary[token_id]) if token_id in vocabulary else "no token"
