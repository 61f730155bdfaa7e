"""The house rules a reader relies on: folder chain, confined libraries, sizes, import style."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHAIN = ("parallel", "engine", "drafters", "ray_app", "launch", "tests")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60

CONFINED = {
    "ray": ("ray_app/", "tests/"),
    "transformers": ("engine/weights/", "engine/tokenizer.py", "launch/bench/peers/", "tests/"),
    "vllm": ("launch/bench/peers/",),
    "llguidance": ("engine/grammar.py",),
    "prometheus_client": ("ray_app/exporters.py", "tests/"),
    "tyro": ("launch/cli.py",),
    "flash_attn": ("engine/attention/flash.py",),
    "deepspeed": ("drafters/training/deepspeed_backend.py",),
}
"""Library -> the only places that may import it."""

READS_ENVIRONMENT = {
    "engine/cache_directory.py": "where the user keeps caches",
    "engine/native/build.py": "passed on to the compiler",
}
"""The exceptions to "only launch/ reads arguments and environment"."""

FILES = sorted(path for folder in CHAIN for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, lazy and typing-only ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def wrong_direction(name: str, tree: ast.AST) -> list[str]:
    """Imports of a folder to the right of the file's own."""
    position = CHAIN.index(name.split("/")[0])
    return [
        f"{name}:{line} imports {module}"
        for line, module in imports(tree)
        if module.split(".")[0] in CHAIN[position + 1 :]
    ]


def unconfined(name: str, tree: ast.AST) -> list[str]:
    """Imports of a confined library outside its place."""
    return [
        f"{name}:{line} imports {module}"
        for line, module in imports(tree)
        if (places := CONFINED.get(module.split(".")[0])) and not name.startswith(places)
    ]


def long_functions(name: str, tree: ast.AST) -> list[str]:
    """Functions over the budget, decorators and docstring counted."""
    return [
        f"{name}:{node.lineno} {node.name} has {lines} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def test_there_are_files_to_check() -> None:
    assert {name_of(path).split("/")[0] for path in FILES} == set(CHAIN)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_obeys_the_rules(path: Path) -> None:
    name, tree = name_of(path), tree_of(path)
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    relative = [f"{name}:{line}" for line, module in imports(tree) if module.startswith(".")]
    assert wrong_direction(name, tree) == []
    assert unconfined(name, tree) == []
    assert relative == [], "imports are absolute"
    assert long_functions(name, tree) == []
    assert num_lines <= MAX_FILE_LINES, f"{name} has {num_lines} lines"
    assert path.stem not in sys.stdlib_module_names, "a module may not hide the standard library's"
    assert ast.get_docstring(tree) or not tree.body, f"{name} says what it is"


def test_a_wrong_import_would_be_found() -> None:
    """The checks themselves: a planted import must be seen, however it is written."""
    lazy = ast.parse("def f():\n    import ray.util\n    from launch import cli\n")
    assert unconfined("engine/engine.py", lazy) == ["engine/engine.py:2 imports ray.util"]
    assert wrong_direction("engine/engine.py", lazy) == ["engine/engine.py:3 imports launch"]
    assert unconfined("ray_app/cluster.py", lazy) == []
    assert wrong_direction("tests/test_x.py", lazy) == []
    assert [module for _, module in imports(ast.parse("from . import x"))] == ["."]


def test_only_launch_reads_arguments_and_environment() -> None:
    """Library code is configured by values; a setting read from the environment is invisible."""
    readers = [
        f"{name_of(path)}:{node.lineno}"
        for path in FILES
        if name_of(path).split("/")[0] not in ("launch", "tests")
        and name_of(path) not in READS_ENVIRONMENT
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "argv")
    ]
    assert readers == []
