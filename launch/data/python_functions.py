"""Python functions to complete: heads and docstrings from the interpreter's own standard library.

The format is HumanEval's, whose problems are not used: a signature and what the function does. The
texts depend on the Python release, which the provenance of a training names.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from launch.bench.workloads import ChatTokenizer, Prompt

MIN_DOCSTRING_CHARACTERS = 40
"""Shorter docstrings do not say what to write."""

_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"})
"""Installed packages, and modules that are not written to be read."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_function_prompts(
    tokenizer: ChatTokenizer, *, num_prompts: int, max_prompt_tokens: int, seed: int = 0
) -> tuple[Prompt, ...]:
    """At most ``num_prompts`` prompts in an order that ``seed`` decides, as token ids of a chat.

    Raises:
        ValueError: a number is not positive, or this interpreter came without its library's source.
    """
    for name, value in (("num_prompts", num_prompts), ("max_prompt_tokens", max_prompt_tokens)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}.")
    texts = list(dict(_library_functions()).items())
    if not texts:
        raise ValueError("the source of Python's standard library is not installed.")
    Random(seed).shuffle(texts)
    prompts: list[Prompt] = []
    for text, name in texts:
        token_ids = tuple(tokenizer.chat([{"role": "user", "content": text}]))
        if len(token_ids) <= max_prompt_tokens:
            prompts.append(Prompt(name=f"python/{name}", token_ids=token_ids))
        if len(prompts) == num_prompts:
            break
    return tuple(prompts)


def functions_to_complete(source: str) -> Iterator[tuple[str, str]]:
    """(signature and docstring, name) of every documented function of a module, in file order.

    Raises:
        SyntaxError: ``source`` is not Python of this release.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _Function):
            described = ast.get_docstring(node)
            if described is not None and len(described) >= MIN_DOCSTRING_CHARACTERS:
                yield _head(node), node.name


def _head(function: _Function) -> str:
    """The function as it stands, without its body and decorators."""
    function.body, function.decorator_list = function.body[:1], []
    return ast.unparse(function) + "\n"


def _library_functions() -> Iterator[tuple[str, str]]:
    for file in _library_files(Path(sysconfig.get_path("stdlib"))):
        try:
            found = list(functions_to_complete(file.read_text(encoding="utf-8")))
        except (SyntaxError, UnicodeDecodeError):  # samples of broken code
            continue
        yield from found


def _library_files(root: Path) -> Sequence[Path]:
    files = (file.relative_to(root) for file in root.rglob("*.py"))
    return [root / file for file in sorted(files) if not _LEFT_OUT.intersection(file.parts)]
