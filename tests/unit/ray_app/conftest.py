"""An application without Ray and without a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.fake_backend import FakeBackend
from tests.support.tiny import LLAMA2, write_checkpoint


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("model")
    return load_tokenizer(write_checkpoint(directory, LLAMA2))


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(tokenizer)
