"""Checks that configurations share: each raises ``ValueError`` with one sentence, or passes."""

from __future__ import annotations


def check_share(key: str, value: object) -> None:
    """A speculative-config key that must be a number from 0 to 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:  # type: ignore[operator]
        raise ValueError(
            f"speculative-config key {key!r} must be a number from 0 to 1, not {value!r}."
        )


def check_integer(key: str, value: object, low: int, high: int) -> None:
    """A speculative-config key that must be an integer."""
    check_flag_integer(f"speculative-config key {key!r}", value, low, high)


def check_flag_integer(name: str, value: object, low: int, high: int) -> None:
    """Any named value that must be an integer."""
    if not is_integer(value) or not low <= value <= high:  # type: ignore[operator]
        raise ValueError(f"{name} must be an integer from {low} to {high}, not {value!r}.")


def is_integer(value: object) -> bool:
    """Whether a value is an integer; True is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_text(key: str, value: object) -> None:
    """A speculative-config key that must be a text, if there is one."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"speculative-config key {key!r} must be a text, not {value!r}.")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Any named value that must be one of some words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")


def check_key(key: str, value: object, allowed: tuple[str, ...]) -> None:
    """A speculative-config key that must be one of some words."""
    check_choice(f"speculative-config key {key!r}", value, allowed)
