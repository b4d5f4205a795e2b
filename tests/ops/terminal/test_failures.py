"""An error's class decides the exit code of the command that it ends, whether it is the ledger's or YATT's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from db.core import errors
from db.core.errors import LedgerError
from ops.terminal.failures import describe, exit_code
from yatt_core.errors import ConfigurationError, DataError, ExitCode, FencedError

HELD = {"Fenced", "LeaseHeld"}
WRONG_INPUT = {
    "RunNotFound",
    "PipelineNotFound",
    "ApprovalNotFound",
    "ApprovalRefused",
    "ApprovalForbidden",
    "QueueRefused",
    "LedgerAddressError",
    "LedgerReadOnly",
    "LedgerVersionError",
}


def kinds(kind: type[LedgerError]) -> Iterator[type[LedgerError]]:
    """Yields a class of errors and all below it that the ledger has."""
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from kinds(below)


@pytest.mark.parametrize(
    "error", [DataError("\x1b[31mred\x9b2J\rover\nnext"), RuntimeError("\x1b[31mred\x9b2J\rover\nnext")]
)
def test_control_characters_of_others_do_not_reach_the_terminal(error: Exception) -> None:
    assert r"\x1b[31mred\x9b2J\rover" + "\nnext" in describe(error)


@pytest.mark.parametrize("kind", sorted(set(kinds(LedgerError)), key=lambda kind: kind.__name__))
def test_a_ledger_error_has_the_exit_code_of_its_class(kind: type[LedgerError]) -> None:
    error = kind("toy-1", "yatt of it", 60.0) if kind is errors.LeaseHeld else kind("said")
    if kind.__name__ in HELD:
        assert exit_code(error) == ExitCode.LEASE_HELD
    elif kind.__name__ in WRONG_INPUT:
        assert exit_code(error) == ExitCode.CONFIGURATION
    else:
        assert exit_code(error) == ExitCode.FAILURE


def test_other_errors_have_theirs() -> None:
    found = [exit_code(error) for error in (ConfigurationError("x"), FencedError("x"), DataError("x"), OSError("x"))]
    assert found == [2, 3, 1, 1]
