"""A run in Python: its state, metrics, samples and checkpoints, and what an operator can ask of it.

Consumes the home folder's ledger and files, which may be written meanwhile. Nothing here drives a run (`yatt/driving.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.branching import branches
from flows.branching.branches import RolledBack
from flows.reports.audit import AuditReport, verify_run
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.results import RunResults, run_results
from ops.integrations.mlflow_reader import reader_of
from ops.people.caller import permitted
from ops.people.roles import Permission
from ops.queries.checkpoints import request
from ops.queries.run_list import DRIVEN, find_line
from ops.queries.run_list import ListedRun as State
from ops.terminal.experience import samples_table
from ops.terminal.exporting import RunExport as Export
from ops.terminal.exporting import export_checkpoint
from ops.terminal.lookup import LATEST, find_run, opened_ledger
from yatt import tables
from yatt.arguments import require, require_callbacks, require_number
from yatt.callbacks import End
from yatt.errors import ConfigurationError, InfrastructureError, error_of
from yatt.following import Follower
from yatt.spec import Overrides, Spec, override_texts

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Export", "Run", "State", "find", "located", "runs"]

LOOK_SECONDS = 0.2
FAILED = "failed"
RUNNING = "running"
ASKED = "asked through the Python API"
"""The reason that the audit chain has if none is given."""


def located(home: str | Path | None) -> Home:
    """Returns a home folder: the given one, else $YATT_HOME, else `runs` in the working folder."""
    return Home.locate(None if home is None else Path(home))


@dataclass(frozen=True, slots=True)
class Run:
    """A run in a home folder.

    id: the spec's name and a number, such as `quickstart-3`.
    """

    id: str
    home: Home

    @property
    def state(self) -> State:
        """The state now: `state`, `iteration`, `target_iterations`, `driver`, `reward`, `accuracy`, `eta_seconds` and more."""
        with opened_ledger(self.home) as ledger:
            return find_line(ledger, self.id)

    @property
    def spec(self) -> Spec:
        """The newest revision of its spec."""
        with opened_ledger(self.home) as ledger:
            return Spec(current_spec(ledger, self.id))

    @property
    def results(self) -> RunResults:
        """Figures and digests, as in `yatt show -o json`; runs with equal digests computed the same results."""
        with opened_ledger(self.home) as ledger:
            return run_results(ledger, self.id)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.home.run_folder(self.id)

    # -- reading -----------------------------------------------------------------------------------------------------

    @overload
    def metrics(self, *keys: str, pandas: Literal[False] = False) -> pa.Table: ...

    @overload
    def metrics(self, *keys: str, pandas: Literal[True]) -> pd.DataFrame: ...

    def metrics(self, *keys: str, pandas: bool = False) -> Any:
        """Returns the metrics along the current line (docs/formats.md): a column `iteration` (int64) and one for each key.

        keys: all if none is given; an unknown one is a `ConfigurationError` with the nearest names.
        pandas: whether to return a data frame, with the iteration as its index, instead of an Arrow table.

        A value is null if the iteration has none, such as an accuracy between evaluations.
        """
        with opened_ledger(self.home) as ledger:
            table = tables.metrics_table(ledger, self.id, keys)
        return tables.frame(table).set_index("iteration") if pandas else table

    @overload
    def samples(self, iteration: int | None = None, *, pandas: Literal[False] = False) -> pa.Table: ...

    @overload
    def samples(self, iteration: int | None = None, *, pandas: Literal[True]) -> pd.DataFrame: ...

    def samples(self, iteration: int | None = None, *, pandas: bool = False) -> Any:
        """Returns the samples of an iteration: one row each, by prompt and sample.

        iteration: by default the last committed one.

        Columns: the experience's (docs/formats.md), such as `prompt`, `response`, `reward`, `correct`, `response_tokens`
        (list of int32), `log_probs_sampler` (list of float32, one per token), and `tokens`, `failed`, `advantage` (null if
        unknown) and `validity`. What was not scored is null. Files that this machine lacks are fetched from the durable tier.

        Raises `ConfigurationError` if no experience of the iteration is recorded, and `DataError` for a damaged file.
        """
        require_number("iteration", iteration)
        with opened_ledger(self.home) as ledger:
            number = find_line(ledger, self.id).iteration if iteration is None else iteration
            table = samples_table(ledger, self.home, self.id, number)
        return tables.frame(table) if pandas else table

    def checkpoints(self) -> tuple[CheckpointRow, ...]:
        """Returns the kept checkpoints, newest first: `iteration`, `bytes`, `weights_digest`, `folder` and more."""
        with opened_ledger(self.home) as ledger:
            return tuple(ledger.records.checkpoints(self.id))

    def audit(self, progress: Callable[[str, int, int], None] = lambda check, done, total: None) -> AuditReport:
        """Recomputes all digests from files, ledger and MLflow; `sound` and `disagreement` of the report say what was found.

        progress: receives the name of a check, how much of it is done, and the total.
        """
        with opened_ledger(self.home) as ledger:
            return verify_run(
                ledger=ledger,
                run=self.id,
                folder=self.folder,
                reader=reader_of(self.home, ledger, self.id),
                progress=progress,
            )

    def export(
        self,
        to: str | Path | None = None,
        *,
        iteration: int | None = None,
        alias: str | None = None,
        dtype: Literal["float32", "bfloat16"] | None = None,
    ) -> Export:
        """Writes a kept checkpoint as a Hugging Face model folder and returns where it is.

        to: the folder, which must not exist; by default in `exports/` of the run's folder.
        iteration, alias: which checkpoint, by default the newest.

        Raises `ConfigurationError`, `DataError` for damaged weights, `InfrastructureError`.
        """
        return export_checkpoint(
            home=self.home,
            run=self.id,
            iteration=iteration,
            alias=alias,
            to=None if to is None else Path(to),
            dtype=dtype,
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    def stop(self, within: float | None = None, reason: str = ASKED) -> bool:
        """Asks the driver to stop after its current iteration, with a checkpoint; returns False if there is no driver.

        within: seconds within which to stop, if necessary in the middle of an iteration.

        Returns at once; `wait` waits for the end.
        """
        by = operator(self.home)
        with opened_ledger(self.home) as ledger:
            driven = find_line(ledger, self.id).driver == DRIVEN
            if driven:
                ledger.runs.ask_to_stop(self.id, reason, within, by)
        return driven

    def checkpoint(self, reason: str = ASKED) -> None:
        """Asks the driver for a checkpoint after its current iteration; the run goes on. Returns at once.

        Raises `ConfigurationError` if nobody drives the run.
        """
        by = operator(self.home)
        with opened_ledger(self.home) as ledger:
            request(ledger, self.id, reason, by)

    def wait(self, timeout: float | None = None, callbacks: Sequence[object] = ()) -> State:
        """Waits until nobody drives the run; returns its state: completed, stopped or paused (or created).

        timeout: maximum seconds.
        callbacks: objects with `on_commit`, `on_end` or both (`yatt.Callback`), called in this thread; what they raise ends
            the wait, not the run.

        Raises `TimeoutError`, the error that ended the run, and `InfrastructureError` if the driver was lost.
        """
        require_callbacks(callbacks)
        deadline = None if timeout is None else time.monotonic() + timeout
        with opened_ledger(self.home) as ledger:
            follower = Follower(ledger, self.id, callbacks)
            while (state := find_line(ledger, self.id)).driver == DRIVEN:
                follower.look(state)
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"run {self.id} is still driven after {timeout:g} s, at iteration {state.iteration}"
                    )
                time.sleep(LOOK_SECONDS)
            follower.look(state)
            follower.end(End(self.id, state.state, state.state_reason))
            raise_failure(ledger, state)
        return state

    def fork(self, at: int, overrides: Overrides = (), *, name: str | None = None, branch: int | None = None) -> Run:
        """Creates a run that begins after an iteration of this one; `yatt.resume` drives it.

        overrides: changes to the spec; model, seed and data cannot change.
        name: of the new run; by default the name in the spec.
        branch: by default the current one.

        Raises `ConfigurationError` before anything is written, and `LeaseHeld`.
        """
        changes = (*override_texts(overrides), *(() if name is None else (f"name={name}",)))
        by = operator(self.home)
        return Run(
            branches.fork(home=self.home, run=self.id, at=at, overrides=changes, branch=branch, by=by).run, self.home
        )

    def rollback(self, to: int, reason: str = ASKED) -> RolledBack:
        """Opens a branch after an iteration, on which `yatt.resume` continues; nothing is deleted.

        Raises `ConfigurationError` before anything is written, and `LeaseHeld` if the run is driven.
        """
        require_number("to", to)
        if not reason.strip():
            raise ConfigurationError("reason: expected a few words, for the audit chain")
        return branches.rollback(home=self.home, run=self.id, to=to, reason=reason, by=operator(self.home))


def operator(home: Home) -> str:
    """Returns the caller's name, for the audit chain. Raises `ConfigurationError` for a caller who may not operate runs."""
    return permitted(home.folder, Permission.OPERATE).name


def raise_failure(ledger: Ledger, state: State, exit_code: int | None = None) -> None:
    """Raises the error with which the newest session ended if it failed or was lost.

    exit_code: of its driver, if it is known.
    """
    if state.state == RUNNING:
        raise InfrastructureError(
            f"run {state.id}: its driver disappeared without an orderly stop; `yatt.resume({state.id!r})` continues the run"
        )
    if state.state == FAILED:
        faults = ledger.browse.faults(state.id, 1)
        known = faults[0].failure_class if faults and (faults[0].reason or "") in state.state_reason else None
        raise error_of(f"run {state.id}: {state.state_reason}", exit_code, known)


def find(run: str = LATEST, home: str | Path | None = None) -> Run:
    """Returns a run by its id, a unique prefix of it, or `latest`. Raises `RunNotFound`."""
    require("run", run, str, "the id of a run, a unique prefix of it, or latest")
    place = located(home)
    with opened_ledger(place) as ledger:
        return Run(find_run(ledger, run), place)


def runs(home: str | Path | None = None, limit: int = 1000) -> list[Run]:
    """Returns the runs of a home folder, newest first. Raises `ConfigurationError` if there is no ledger."""
    place = located(home)
    with opened_ledger(place) as ledger:
        return [Run(row.id, place) for row in ledger.runs.list(limit)]
