"""The errors that the API raises: the classes whose exit codes the command line returns.

YattError                   raised on purpose; its text can be shown to a user
ConfigurationError        the spec, a path or an argument is wrong (exit code 2)
DriftError              a replay is required, but the environment has changed
InfrastructureError       a process, machine, network or disk failed (exit code 1)
StorageFullError, StuckError
DataError                 the data or a reward function is at fault (exit code 1)
NumericError, ReplayError a loss or a gradient is not finite; a replay differs (exit code 1)
AlignmentError            in an aligned run, trainer and sampler differ (exit code 1)
FencedError               a newer term owns the run (exit code 3)
LedgerError                 raised by the ledger
RunNotFound               no run, or several, match a name (exit code 2)
LeaseHeld                 another process drives the run (exit code 3)
LedgerUnavailable         the database cannot be reached (exit code 1)
"""

from __future__ import annotations

from db.core.errors import LeaseHeld, LedgerError, LedgerUnavailable, LedgerVersionError, RunNotFound
from yatt_core.errors import (
    AlignmentError,
    ConfigurationError,
    DataError,
    DriftError,
    ExitCode,
    FailureClass,
    FencedError,
    InfrastructureError,
    NumericError,
    ReplayError,
    StorageFullError,
    StuckError,
    YattError,
)

__all__ = [
    "AlignmentError",
    "ConfigurationError",
    "DataError",
    "DriftError",
    "ExitCode",
    "FailureClass",
    "FencedError",
    "InfrastructureError",
    "LeaseHeld",
    "LedgerError",
    "LedgerUnavailable",
    "LedgerVersionError",
    "NumericError",
    "ReplayError",
    "RunNotFound",
    "StorageFullError",
    "StuckError",
    "YattError",
    "error_of",
]

_BY_CLASS: dict[str, type[YattError]] = {
    FailureClass.CONFIGURATION: ConfigurationError,
    FailureClass.DATA: DataError,
    FailureClass.NUMERIC: NumericError,
    FailureClass.FENCED: FencedError,
}
_BY_CODE: dict[int, type[YattError]] = {
    ExitCode.CONFIGURATION: ConfigurationError,
    ExitCode.LEASE_HELD: FencedError,
}


def error_of(text: str, exit_code: int | None = None, failure_class: str | None = None) -> YattError:
    """Returns the error of a driver that has ended in another process.

    text: what it wrote.
    exit_code: its exit code if it ended before it held the run.
    failure_class: the class of the run's last failed attempt if there was one.
    """
    kind = _BY_CODE.get(exit_code or 0) or _BY_CLASS.get(failure_class or "", InfrastructureError)
    return kind(text.removeprefix("error: "))
