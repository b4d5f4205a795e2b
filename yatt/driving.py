"""Starts runs and continues them, each with a driver in a process of its own.

Consumes a spec or a run. Produces the driver, which is `yatt resume` and outlives this process. A driver in the caller's process
would bring its signal handlers, its Ray and its settings of Prefect into a notebook or another flow.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from db.core.errors import LeaseHeld
from db.core.subjects import of_run
from flows.branching.branches import finish_fork, revise
from flows.branching.safe_point import RevisionOptions
from flows.driver.services import check_surroundings
from flows.prefect_io.secret_blocks import read_block
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.repositories import with_repositories
from ops.group.address import server_of_runs
from ops.queries.run_list import DRIVEN, find_line
from ops.terminal.detached import start_detached
from ops.terminal.lookup import find_run, opened_ledger
from yatt.arguments import require, require_callbacks, require_number
from yatt.errors import ExitCode, error_of
from yatt.run import Run, located, operator, raise_failure
from yatt.spec import Overrides, Spec, as_spec, override_texts

HANDLED = (ExitCode.OK, ExitCode.PAUSED, ExitCode.INTERRUPTED)


def train(
    spec: Spec | str | Path,
    overrides: Overrides = (),
    *,
    until: int | None = None,
    detach: bool = False,
    callbacks: Sequence[object] = (),
    home: str | Path | None = None,
) -> Run:
    """Checks a spec, creates a run and trains it to its target.

    spec: a `Spec` or the path of a spec file.
    overrides: changes to it.
    until: the iteration after which it stops; None for the run's target.
    detach: whether to return once the driver holds the run, instead of at its end.
    callbacks: as for `Run.wait`; without `detach` only.
    home: the folder of runs; by default $YATT_HOME, else `runs`.

    Returns the run, whose `state` is completed, stopped or paused. Raises `ConfigurationError` with all mistakes of the spec
    before anything is written, and otherwise the error that ended the run. Ctrl-C asks the driver to stop, and waits for it.
    """
    given = as_spec(spec)
    require_number("until", until)
    require_callbacks(callbacks)
    chosen = given.override(overrides) if overrides else given
    place = located(home)
    by = operator(place)
    named = with_repositories(place.folder, chosen.model, read_block=read_block, weights=False)
    Spec(named).validate(place.folder)
    check_surroundings(server_of_runs(place))
    run = Run(create_run(place, named, by=by, read_block=read_block), place)
    return _driven(run, until, detach, callbacks)


def resume(
    run: Run | str,
    overrides: Overrides = (),
    *,
    until: int | None = None,
    accept_drift: bool = False,
    new_code: bool = False,
    discard: bool = False,
    detach: bool = False,
    callbacks: Sequence[object] = (),
    home: str | Path | None = None,
) -> Run:
    """Continues a run after its last commit, whether it was stopped, failed, was killed or is a new fork.

    run: a `Run`, or an id, a unique prefix of it, or `latest`.
    overrides: changes to the spec, recorded as a new revision.
    accept_drift: replay updates even if the environment has changed since.
    new_code: use the Python files that the spec names as they are now; samples of the open iteration that were scored
        otherwise are discarded.
    discard: with `overrides`, discard samples of the open iteration that were made with the old values.
    until, detach, callbacks: as for `train`.
    home: the folder of runs, unless `run` is a `Run`.

    Raises `RunNotFound`, `LeaseHeld` if the run is driven, `ConfigurationError`, and the error that ended the run.
    """
    require_number("until", until)
    require_callbacks(callbacks)
    require("run", run, (Run, str), "a run or its id")
    place = run.home if isinstance(run, Run) else located(home)
    by = operator(place)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run.id if isinstance(run, Run) else run)
        finish_fork(place, ledger, name)
    if overrides or new_code:
        revise(place, name, override_texts(overrides), by, asked=RevisionOptions(new_code, discard))
    return _driven(run=Run(name, place), until=until, detach=detach, callbacks=callbacks, accept_drift=accept_drift)


def fork(
    run: Run | str, at: int, overrides: Overrides = (), *, name: str | None = None, home: str | Path | None = None
) -> Run:
    """Creates a run that begins after an iteration of another one (`Run.fork`); `resume` drives it."""
    require("run", run, (Run, str), "a run or its id")
    if isinstance(run, Run):
        return run.fork(at, overrides, name=name)
    place = located(home)
    with opened_ledger(place) as ledger:
        parent = Run(find_run(ledger, run), place)
    return parent.fork(at, overrides, name=name)


def _driven(run: Run, until: int | None, detach: bool, callbacks: Sequence[object], accept_drift: bool = False) -> Run:
    """Starts a driver; waits for its end unless it is detached."""
    process = _started(run.home, run.id, until, accept_drift)
    if detach:
        return run
    try:
        run.wait(callbacks=callbacks)
    except KeyboardInterrupt:
        run.stop(reason="interrupted in Python")
        run.wait()
        raise
    code = process.wait()
    if code not in HANDLED:
        with opened_ledger(run.home) as ledger:
            raise_failure(ledger, find_line(ledger, run.id), code)
    return run


def _started(home: Home, run: str, until: int | None, accept_drift: bool) -> subprocess.Popen[bytes]:
    """Starts a driver and returns it once it holds the run. Raises `LeaseHeld`, and the error with which it ended before."""
    with opened_ledger(home) as ledger:
        line = find_line(ledger, run)
        if line.driver == DRIVEN:
            raise LeaseHeld(of_run(run), line.holder or "", line.lease_expires_in)
        started = start_detached(home=home, ledger=ledger, run=run, accept_drift=accept_drift, until=until)
    if started.exit_code not in (None, *HANDLED):
        raise error_of(started.said.rpartition("error: ")[2], started.exit_code)
    return started.process
