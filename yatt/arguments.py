"""Refuses arguments of a wrong type, before anything is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from yatt.errors import ConfigurationError

PATHS = (str, Path)
METHODS = ("on_commit", "on_end")
"""What a callback has, at least one of them."""


def require(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raises `ConfigurationError` for a value that is of none of the kinds.

    name: of the argument.
    expected: what would be right.
    """
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{name}: expected {expected} (given: {value!r:.80}, of type {type(value).__name__})")


def require_number(name: str, value: object, least: int = 0) -> None:
    """Raises `ConfigurationError` for a value that is neither None nor a whole number of at least `least`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigurationError(f"{name}: expected a whole number of at least {least} (given: {value!r:.80})")


def require_callbacks(callbacks: Sequence[object]) -> None:
    """Raises `ConfigurationError` for a callback that has none of the methods that would be called."""
    require("callbacks", callbacks, Sequence, "a list of callbacks")
    for number, callback in enumerate(callbacks):
        if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in METHODS):
            raise ConfigurationError(
                f"callbacks.{number}: expected an object with {' or '.join(METHODS)} (given: {callback!r:.80})"
            )
