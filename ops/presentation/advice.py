"""What a person can do next with a run: after a failure, or once a command has ended.

Consumes the run's state, or the error; produces text that names only commands which help.
"""

from __future__ import annotations

from collections.abc import Sequence

from db.core.errors import RunNotFound
from yatt_core.errors import ConfigurationError, DataError, DriftError, NumericError, ReplayError

RESUME = "yatt resume"


def to_continue(run: str, state: str, reason: str, iteration: int, target: int) -> str | None:
    """Returns the command that continues a run; None if it has completed, or if the reason of its state names one.

    iteration: the last committed iteration; -1 before the first.
    target: the run's last iteration.
    """
    if state == "completed" or RESUME in reason:
        return None
    return f"{RESUME} {run} --set iterations=N" if iteration >= target else f"{RESUME} {run}"


def after_failure(error: BaseException, run: str, begun: bool, files: Sequence[str] = ()) -> str | None:
    """Returns what is kept after a session has failed, and what to do next; None if the error says it all.

    begun: the run has a commit.
    files: the Python files that the run's spec names, of which the run executes copies.
    """
    if isinstance(error, RunNotFound):
        return None
    kept = "committed work is kept" if begun else "nothing has been committed"
    return f"{kept}; {_remedy(error, run, begun, files)}"


def _remedy(error: BaseException, run: str, begun: bool, files: Sequence[str]) -> str:
    if isinstance(error, DriftError):
        return "the updates after the newest checkpoint have not been replayed"
    if isinstance(error, ConfigurationError):
        # Resuming under the same spec would fail in the same way.
        mend = f"{_of_files(run, files)}correct it, or change the spec with `{RESUME} {run} --set KEY=VALUE`"
        return mend if begun else f"{mend}, or delete the run with `yatt rm {run}`"
    if isinstance(error, ReplayError | NumericError):
        same = "a resumed run would compute the same"
        return (
            f"{same}; see `yatt logs {run}`. `yatt rollback {run} --to K` returns to an earlier iteration"
            if begun
            else same
        )
    if isinstance(error, DataError):
        return (
            f"the same data fails again: {_of_files(run, files)}correct it, then `{RESUME} {run}`, or change the spec with "
            f"`{RESUME} {run} --set KEY=VALUE --discard`, which draws the open iteration's samples again; see `yatt logs {run}` "
            "for details"
        )
    return f"see `yatt logs {run}` for details, `{RESUME} {run}` {'continues the run' if begun else 'tries again'}"


def _of_files(run: str, files: Sequence[str]) -> str:
    """Returns what to do about a fault in a file of which the run has a copy, followed by the beginning of another case."""
    if not files:
        return ""
    named = ", ".join(dict.fromkeys(files))
    return f"if the fault is in {named}, correct the file, then `{RESUME} {run} --new-code`; otherwise "
