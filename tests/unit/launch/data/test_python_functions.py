"""Prompts from the standard library: documented functions without their bodies, decided by seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launch.data.python_functions import functions_to_complete, python_function_prompts

SOURCE = '''
def add(first: int, *rest: int) -> int:
    """The sum of all numbers that were given, at least one."""
    return first + sum(rest)

def short(value):
    """Too short."""

class Queue:
    @property
    def oldest(self):
        """What has been waiting longest and will be taken next."""
        return self.items[0]

async def fetch(name):
    return name
'''


class Characters:
    """A tokenizer with a token per character."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return list(messages[0]["content"].encode())


def test_a_function_keeps_signature_and_docstring_and_loses_the_rest() -> None:
    found = dict(functions_to_complete(SOURCE))
    assert set(found.values()) == {"add", "oldest"}
    texts = {name: text for text, name in found.items()}
    assert texts["add"].startswith('def add(first: int, *rest: int) -> int:\n    """The sum')
    assert texts["oldest"].startswith("def oldest(self):\n")
    assert not any(word in text for text in found for word in ("return", "@property"))


def test_prompts_are_distinct_short_enough_and_decided_by_the_seed() -> None:
    prompts = python_function_prompts(Characters(), num_prompts=50, max_prompt_tokens=300)
    assert len({prompt.token_ids for prompt in prompts}) == 50
    assert max(len(prompt.token_ids) for prompt in prompts) <= 300
    assert all(b'"""' in bytes(prompt.token_ids) for prompt in prompts)
    again = python_function_prompts(Characters(), num_prompts=50, max_prompt_tokens=300)
    other = python_function_prompts(Characters(), num_prompts=50, max_prompt_tokens=300, seed=1)
    assert again == prompts != other


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="num_prompts must be at least 1, not 0"):
        python_function_prompts(Characters(), num_prompts=0, max_prompt_tokens=5)
