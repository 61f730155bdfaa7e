"""Command lines made from frozen dataclasses; a user's mistake is one sentence and exit code 2.

The only file that knows the command-line library (tyro). A field's name becomes the flag, the text
below it the help, ``None`` means "not given".
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tyro
from tyro.conf import Positional  # a field given by its place, for other commands
from tyro.conf import UseAppendAction as Repeated  # a flag that may be given several times
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

__all__ = ["USER_ERROR", "Positional", "Repeated", "parse", "user_errors"]

Config = TypeVar("Config")

USER_ERROR = 2
"""Exit code of a user's mistake."""

_BOX = re.compile(r"[╭╮╰╯│─]+")


def parse(
    config_type: type[Config],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str,
) -> Config:
    """The command line as a ``config_type``; ``argv`` defaults to this process's arguments.

    Raises:
        SystemExit: 0 after ``--help``; 2 after one sentence on stderr for a wrong flag or value.
    """
    complaint = io.StringIO()
    try:
        with user_errors(prog), contextlib.redirect_stderr(complaint):
            return tyro.cli(
                config_type,
                args=list(sys.argv[1:] if argv is None else argv),
                prog=prog,
                description=description,
                registry=_registry(),
            )
    except SystemExit as stop:
        if complaint.getvalue():
            sentence = _sentence(complaint.getvalue())
            sys.stderr.write(f"{prog}: {sentence} See --help.\n")
        raise stop from None


@contextlib.contextmanager
def user_errors(prog: str, *, speaks: bool = True) -> Iterator[None]:
    """Turn a ``ValueError`` raised inside into its sentence on stderr and exit code 2.

    Wrap what reads the user's input (flags, files, model), not the work that follows: there a
    ``ValueError`` is a defect and deserves its traceback. Of several ranks one ``speaks``.
    """
    try:
        yield
    except ValueError as error:
        if speaks:
            sys.stderr.write(f"{prog}: {' '.join(str(error).split())}\n")
        raise SystemExit(USER_ERROR) from None


def _sentence(complaint: str) -> str:
    """The first paragraph of the library's framed message as one line."""
    lines = [_BOX.sub("", line).strip() for line in complaint.splitlines()[1:]]
    end = next((index for index, line in enumerate(lines) if not line), len(lines))
    return " ".join(lines[:end]).rstrip(":. ") + "."


def _registry() -> ConstructorRegistry:
    """Plain words for numbers and texts, given or not: INT instead of {None}|INT."""
    registry = ConstructorRegistry()
    registry.primitive_rule(_plain_value)
    return registry


def _plain_value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kind = next((kind for kind in _KINDS if info.type in (kind, kind | None)), None)
    if kind is None:
        return None
    metavar, noun = _KINDS[kind]
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=_reader(kind, noun),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )


_KINDS: dict[type, tuple[str, str]] = {
    int: ("INT", "an integer"),
    float: ("FLOAT", "a number"),
    str: ("TEXT", "a text"),
}


def _reader(kind: Callable[[str], Any], noun: str) -> Callable[[list[str]], Any]:
    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {noun}") from None

    return read
