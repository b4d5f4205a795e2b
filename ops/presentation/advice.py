"""What a person can do next with a run: after a failure, or once a command has ended.

Consumes the run's state, or the error; produces text that names only commands which help.
"""

from __future__ import annotations

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


def after_failure(error: BaseException, run: str, begun: bool) -> str | None:
    """Returns what is kept after a session has failed, and what to do next; None if the error says it all.

    begun: the run has a commit.
    """
    if isinstance(error, RunNotFound):
        return None
    kept = "committed work is kept" if begun else "nothing has been committed"
    return f"{kept}; {_remedy(error, run, begun)}"


def _remedy(error: BaseException, run: str, begun: bool) -> str:
    if isinstance(error, DriftError):
        return "the updates after the newest checkpoint have not been replayed"
    if isinstance(error, ConfigurationError):
        # Resuming under the same spec would fail in the same way.
        mend = f"correct it, or change the spec with `{RESUME} {run} --set KEY=VALUE`"
        return mend if begun else f"{mend}, or delete the run with `yatt rm {run}`"
    if isinstance(error, ReplayError | NumericError):
        same = "a resumed run would compute the same"
        return (
            f"{same}; see `yatt logs {run}`. `yatt rollback {run} --to K` returns to an earlier iteration"
            if begun
            else same
        )
    if isinstance(error, DataError):
        return f"the same data fails again: correct it, then `{RESUME} {run}`; see `yatt logs {run}` for details"
    return f"see `yatt logs {run}` for details, `{RESUME} {run}` {'continues the run' if begun else 'tries again'}"
