"""Turns an exception into one message for people and one exit code for scripts."""

from __future__ import annotations

import sys
import traceback

from db.core.errors import LeaseHeld, LedgerError
from db.core.subjects import name_of
from ops.presentation.words import shortened
from yatt_core.errors import ExitCode, YattError
from yatt_core.logs import redact
from yatt_core.printable import printable


def exit_code(error: BaseException) -> int:
    """Returns the exit code for an error."""
    return error.exit_code if isinstance(error, YattError | LedgerError) else ExitCode.FAILURE


def describe(error: BaseException) -> str:
    """Returns what went wrong and what to do, with credentials redacted; unexpected errors also suggest `--debug`.

    Control characters are escaped: parts of the text may come from files and code of others.
    """
    return shortened(printable(redact(_described(error))))


def _described(error: BaseException) -> str:
    if isinstance(error, LeaseHeld):
        return f"{error}\n{_way_in(error)}"
    if isinstance(error, YattError | LedgerError):
        return str(error)
    name = type(error).__name__
    return f"unexpected {name}: {error}\nrun the command again with --debug to see the traceback"


def _way_in(error: LeaseHeld) -> str:
    """Returns how to get at a run that is held: only a driver can be asked to stop."""
    from flows.run.lease import DRIVER

    if error.holder.startswith("yatt ") and not error.holder.startswith(DRIVER):
        return "that command ends by itself: try again then"
    return f"to stop it first: yatt stop {name_of(error.subject)} --wait"


def report(error: BaseException, debug: bool) -> int:
    """Writes the error to standard error, with a traceback if `debug` is set, and returns the exit code."""
    if debug:
        sys.stderr.write(printable(redact("".join(traceback.format_exception(error)))))
    sys.stderr.write(f"error: {describe(error)}\n")
    return exit_code(error)
