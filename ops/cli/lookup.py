"""Finds what a command is about: the ledger of the home folder, a run in it, and a kept checkpoint of that.

Imported with the program, so nothing heavy is imported here before it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.write.records import CheckpointRow
    from flows.run.home import Home
    from yatt_core.spec import RunSpec

LATEST = "latest"


@contextmanager
def opened_ledger(home: Home) -> Iterator[Ledger]:
    """The ledger that is there; none is made or migrated. Raises `ConfigurationError` where there is none."""
    from db.ledger import Ledger
    from flows.run.home import LEDGER_VARIABLE
    from ops.preflight.home_folder import ledger_file
    from yatt_core.errors import ConfigurationError

    file = ledger_file(home)
    if file is not None and not file.exists():
        if os.environ.get(LEDGER_VARIABLE):
            where, remedy = f"{LEDGER_VARIABLE}: {file}", f"set {LEDGER_VARIABLE} to where they are, or unset it"
        else:
            where, remedy = str(home.folder), "say where they are with --home or $YATT_HOME"
        raise ConfigurationError(f"{where}: no runs here; start one with `yatt train SPEC`, or {remedy}")
    with Ledger.open(home.ledger, migrate=False) as ledger:
        yield ledger


def find_run(ledger: Ledger, name: str) -> str:
    """The id of the run that a person means. Raises `RunNotFound`."""
    from db.core.errors import RunNotFound

    if name != LATEST:
        return ledger.runs.find(name).id
    newest = ledger.runs.list(limit=1)
    if not newest:
        raise RunNotFound("there are no runs in this ledger yet; start one with `yatt train SPEC`")
    return newest[0].id


def kept_checkpoint(ledger: Ledger, run: str, iteration: int | None) -> CheckpointRow:
    """The kept checkpoint of an iteration, or the newest. Raises `ConfigurationError`, naming those that are kept."""
    from yatt_core.errors import ConfigurationError

    rows = ledger.records.checkpoints(run)
    if not rows:
        raise ConfigurationError(f"run {run}: it has no checkpoint yet")
    for row in rows:
        if row.is_meant(iteration):
            return row
    kept = ", ".join(str(row.iteration) for row in reversed(rows))
    raise ConfigurationError(f"run {run}: no checkpoint of iteration {iteration} is kept; there are those of {kept}")


def aliased_checkpoint(ledger: Ledger, run: str, alias: str) -> CheckpointRow:
    """The checkpoint that an alias points to, on whatever branch. Raises `ConfigurationError`, naming the aliases there are."""
    from yatt_core.errors import ConfigurationError

    pointing = ledger.aliases.pointing(run)
    if alias not in pointing:
        there = ", ".join(sorted(pointing)) or "none yet"
        raise ConfigurationError(f"run {run}: it has no {alias}; aliases: {there}. See `yatt promote --help`")
    rows = ledger.records.own_checkpoints(run)
    return next(row for row in rows if (row.branch, row.iteration, row.term) == pointing[alias])


def opened_checkpoint(
    home: Home, run: str, iteration: int | None, alias: str | None = None
) -> tuple[str, RunSpec, CheckpointRow]:
    """The id of the run that a person means, its spec, and its kept checkpoint: of an iteration, or what an alias points to.

    The checkpoint and the run's inputs are then in the run's folder. Raises as `find_run`, `kept_checkpoint` and `aliased_checkpoint`.
    """
    from flows.files.storage import fetch_lacking, store_of
    from yatt_core.errors import ConfigurationError
    from yatt_core.input_building.settling import fetch_inputs
    from yatt_core.spec import parse_spec

    if iteration is not None and alias is not None:
        raise ConfigurationError("--iteration and --alias: right would be one of the two, since both name a checkpoint")
    with opened_ledger(home) as ledger:
        name = find_run(ledger, run)
        row = kept_checkpoint(ledger, name, iteration) if alias is None else aliased_checkpoint(ledger, name, alias)
        folder = home.run_folder(row.run)
        store = store_of(ledger, row.run, folder)
        fetch_inputs(folder, store)
        fetch_lacking(store, folder, [row])
        return name, parse_spec(dict(ledger.runs.revision(name).spec), f"the spec of run {name}"), row
