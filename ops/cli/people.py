"""The person who calls a command: the name to record, and the answer to a question."""

from __future__ import annotations

import getpass
import sys

import typer

from yatt_core.errors import ConfigurationError


def named(by: str | None, what: str) -> str:
    """Returns the given name, else the login name of this account.

    what: what the person does, for the error message.

    Raises `ConfigurationError` if neither is known, and as `line_of_text` does.
    """
    if by is not None:
        return line_of_text("--by", by)
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:  # KeyError: Python before 3.13
        raise ConfigurationError(
            f"--by: this account's login name cannot be determined; give the name of the person who {what}"
        ) from error


def line_of_text(option: str, text: str) -> str:
    """Returns an option's text. Raises `ConfigurationError` for control characters, which a terminal would obey."""
    if not text.isprintable():
        raise ConfigurationError(f"{option}: expected a line of text without control characters (given: {text!r:.80})")
    return text


def agreed(question: str, yes: bool) -> bool:
    """Returns True if the person agrees, either by `--yes` or in answer to the question.

    Raises `ConfigurationError` without `--yes` if nobody can be asked, since this is no terminal.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError("--yes: required, since there is no terminal on which to ask")
    return typer.confirm(question, err=True)
