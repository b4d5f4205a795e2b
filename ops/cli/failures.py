"""From an exception to what a person reads and what a script gets: one message, one exit code."""

from __future__ import annotations

import sys
import traceback

from db.core.errors import (
    Fenced,
    LeaseHeld,
    LedgerAddressError,
    LedgerError,
    LedgerReadOnly,
    LedgerVersionError,
    RunNotFound,
)
from ops.presentation.words import shortened
from yatt_core.errors import ExitCode, YattError
from yatt_core.logs import redact


def exit_code(error: BaseException) -> int:
    """The command line's answer to an error."""
    if isinstance(error, YattError):
        return error.exit_code
    if isinstance(error, LeaseHeld | Fenced):
        return ExitCode.LEASE_HELD
    if isinstance(error, RunNotFound | LedgerAddressError | LedgerReadOnly | LedgerVersionError):
        return ExitCode.CONFIGURATION
    return ExitCode.FAILURE


def describe(error: BaseException) -> str:
    """What went wrong, without credentials, and what to do; an error that nobody foresaw says how to see more."""
    return shortened(redact(_described(error)))


def _described(error: BaseException) -> str:
    if isinstance(error, LeaseHeld):
        return f"{error}\nto have it end first: yatt stop {error.run} --wait"
    if isinstance(error, YattError | LedgerError):
        return str(error)
    name = type(error).__name__
    return f"unexpected {name}: {error}\nrun the command again with --debug to see where it came from"


def report(error: BaseException, debug: bool) -> int:
    """Writes the error to standard error, with its traceback only when asked; returns the exit code."""
    if debug:
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    sys.stderr.write(f"error: {describe(error)}\n")
    return exit_code(error)
