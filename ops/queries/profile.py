"""Where the time of a run's newest iterations, or of one of them, goes.

Consumes the ledger, which names the makers of the iterations, and the records in their folders; produces a `Profile`.
"""

from __future__ import annotations

from db.ledger import Ledger
from flows.reports.profile import Profile, profile_of
from flows.run.home import Home
from flows.run.profile_record import read_profile
from yatt_core.errors import ConfigurationError


def run_profile(ledger: Ledger, home: Home, run: str, iteration: int | None, last: int) -> Profile:
    """Returns the profile of one iteration, or of the newest committed ones.

    last: the number of the newest ones; without effect if there is an iteration.

    Raises `ConfigurationError` if the iteration is not committed, and `RunNotFound`.
    """
    newest = ledger.runs.find(run).iteration
    if newest < 0:
        raise ConfigurationError(f"run {run} has committed no iteration yet, so there is no profile")
    if iteration is not None and iteration > newest:
        raise ConfigurationError(f"--iteration {iteration}: it is not committed; committed: 0 to {newest}")
    # Iteration 0 is of another kind; it is shown if it is asked for, or alone.
    wanted = range(max(min(1, newest), newest - last + 1), newest + 1) if iteration is None else (iteration,)
    found = {}
    for number in wanted:
        maker, branch, _ = ledger.commits.maker(run, number)
        found[number] = read_profile(home.run_folder(maker), branch, number)
    return profile_of(found)
