"""Texts that are read, not written, by the verifier."""

from __future__ import annotations

from random import Random

from drafters.training.copied_text import SHORTEST_SPAN, constructed_copies, natural_text
from drafters.training.copy_labels import copy_labels


def test_a_natural_text_stays_as_it_is() -> None:
    text = natural_text(range(20))
    assert text.token_ids == tuple(range(20))
    assert len(text.prompt_ids) == 5


def test_constructed_copies_alternate_with_foreign_text() -> None:
    """Every answer has both labels, and labelled tokens are the source's."""
    source, filler = range(100), range(1_000, 1_200)
    text = constructed_copies(source, filler, Random(0), max_tokens=150)
    assert text.prompt_ids == tuple(source)
    assert len(text.output_ids) == 150
    labels = copy_labels(text.token_ids, 100).tolist()
    copied = [token in source for token in text.output_ids]
    assert set(copied) == {True, False}
    assert sum(a == b for a, b in zip(labels, copied, strict=True)) >= 150 - SHORTEST_SPAN
