"""Follows the commits of a run in the ledger and tells callbacks of them, in order and each once.

Consumes a run's state at each look. Produces calls of `on_commit` and `on_end`.
"""

from __future__ import annotations

from collections.abc import Sequence

from db.ledger import Ledger
from ops.queries.run_list import ListedRun
from yatt.callbacks import Commit, End

SECONDS = "seconds/"
"""The beginning of the keys of the durations of phases."""


class Follower:
    """Tells callbacks of the commits from its creation on; after a rollback, of those of the new branch."""

    def __init__(self, ledger: Ledger, run: str, callbacks: Sequence[object]) -> None:
        self._ledger = ledger
        self._run = run
        self._callbacks = callbacks
        row = ledger.runs.find(run)
        self._branch = row.current_branch
        self._last = row.iteration

    def look(self, state: ListedRun) -> None:
        """Tells of the commits since the last look."""
        if state.branch != self._branch:
            branches = {branch.number: branch for branch in self._ledger.overview.branches(self._run)}
            self._branch = state.branch
            self._last = branches[state.branch].parent_iteration or 0
        if not self._callbacks:
            return
        for iteration in range(self._last + 1, state.iteration + 1):
            found = self._ledger.commits.at(self._run, iteration)
            if found is None:  # rolled back meanwhile; the next look sees the new branch
                return
            metrics = self._ledger.metrics.at(found.run, found.branch, iteration)
            seconds = sum(value for key, value in metrics.items() if key.startswith(SECONDS))
            self._tell(
                "on_commit",
                Commit(
                    run=self._run, iteration=iteration, target=state.target_iterations, metrics=metrics, seconds=seconds
                ),
            )
            self._last = iteration

    def end(self, end: End) -> None:
        """Tells of the end of the session."""
        self._tell("on_end", end)

    def _tell(self, method: str, told: Commit | End) -> None:
        for callback in self._callbacks:
            if hasattr(callback, method):
                getattr(callback, method)(told)
