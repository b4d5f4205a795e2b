"""Finds what a command works on: the home folder's ledger, a run in it, and one of the run's kept checkpoints.

Modules of commands import this one, so what loads a library is imported inside the functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from db.core.errors import RunNotFound
from flows.run.home import LEDGER_VARIABLE, Home
from ops.preflight.home_folder import ledger_file
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.write.records import CheckpointRow
    from flows.members.tags import Family
    from yatt_core.spec import RunSpec

LATEST = "latest"
ALIKE = 0.75
"""Minimum similarity at which a name counts as a mistyped `latest`."""


@contextmanager
def opened_ledger(home: Home) -> Iterator[Ledger]:
    """Opens an existing ledger without creating or migrating it. Raises `ConfigurationError` if there is none."""
    from db.ledger import Ledger

    file = ledger_file(home)
    if file is not None and not file.exists():
        if os.environ.get(LEDGER_VARIABLE):
            where = f"{LEDGER_VARIABLE}: {file}"
            remedy = f"point {LEDGER_VARIABLE} at an existing ledger, or unset it"
        else:
            where = str(home.folder)
            remedy = "point --home or $YATT_HOME at the folder that has them"
        raise ConfigurationError(f"{where}: no runs here; start one with `yatt train SPEC`, or {remedy}")
    with Ledger.open(home.ledger, migrate=False) as ledger:
        yield ledger


def find_run(ledger: Ledger, name: str) -> str:
    """Returns the id of the run named by an id, a unique prefix or `latest`. Raises `RunNotFound`."""
    if name != LATEST:
        try:
            return ledger.runs.find(name).id
        except RunNotFound as error:
            if SequenceMatcher(None, name, LATEST).ratio() < ALIKE:
                raise
            raise RunNotFound(f"{error}; or {LATEST!r}?") from None
    newest = ledger.runs.list(limit=1)
    if not newest:
        raise RunNotFound("there are no runs in this ledger yet; start one with `yatt train SPEC`")
    return newest[0].id


def find_record(ledger: Ledger, family: Family, name: str) -> str:
    """Returns the record, such as a soup, to which the named run belongs, or for `latest` the newest.

    Raises `RunNotFound`, and `ConfigurationError` if there is no such record.
    """
    if name != LATEST:
        return family.require_record(ledger, find_run(ledger, name))
    if not (known := family.records(ledger)):
        raise ConfigurationError(
            f"there are no {family.kind}s in this ledger yet; start one with `yatt {family.kind} run SPEC`"
        )
    return known[0]


def kept_checkpoint(ledger: Ledger, run: str, iteration: int | None) -> CheckpointRow:
    """Returns a kept checkpoint, by default the newest. Raises `ConfigurationError`, listing the kept ones."""
    rows = ledger.records.checkpoints(run)
    if not rows:
        raise ConfigurationError(f"run {run}: no checkpoint yet")
    for row in rows:
        if row.is_meant(iteration):
            return row
    kept = ", ".join(str(row.iteration) for row in reversed(rows))
    raise ConfigurationError(f"run {run}: no checkpoint is kept for iteration {iteration}; kept iterations: {kept}")


def aliased_checkpoint(ledger: Ledger, run: str, alias: str) -> CheckpointRow:
    """Returns the checkpoint of an alias, on any branch. Raises `ConfigurationError`, listing the aliases."""
    pointing = ledger.aliases.pointing(run)
    if alias not in pointing:
        there = ", ".join(sorted(pointing)) or "none yet"
        raise ConfigurationError(f"run {run}: no alias {alias}; aliases: {there}. See `yatt promote --help`")
    rows = ledger.records.own_checkpoints(run)
    return next(row for row in rows if (row.branch, row.iteration, row.term) == pointing[alias])


def opened_checkpoint(
    home: Home, run: str, iteration: int | None, alias: str | None = None
) -> tuple[str, RunSpec, CheckpointRow]:
    """Returns a run's id, its spec and a kept checkpoint, chosen by iteration or by alias.

    Fetches the checkpoint and the run's inputs into the run's folder. Raises what `find_run`, `kept_checkpoint` and
    `aliased_checkpoint` raise.
    """
    from flows.files.storage import store_of
    from yatt_core.storage.lacking import fetch_lacking

    if iteration is not None and alias is not None:
        raise ConfigurationError("--iteration and --alias: each selects a checkpoint; give only one of them")
    with opened_ledger(home) as ledger:
        name = find_run(ledger, run)
        row = kept_checkpoint(ledger, name, iteration) if alias is None else aliased_checkpoint(ledger, name, alias)
        folder = home.run_folder(row.run)
        fetch_lacking(store_of(ledger, row.run, folder), folder, [row])
        return name, _opened_spec(home, ledger, name, row.run), row


def opened_run(home: Home, run: str) -> tuple[str, RunSpec]:
    """Returns a run's id and its spec; fetches its inputs into the run's folder. Raises what `find_run` raises."""
    with opened_ledger(home) as ledger:
        name = find_run(ledger, run)
        return name, _opened_spec(home, ledger, name, name)


def _opened_spec(home: Home, ledger: Ledger, name: str, owner: str) -> RunSpec:
    """Returns the spec of a run.

    owner: the run in whose folder the inputs are to be.
    """
    from flows.files.storage import store_of
    from yatt_core.code_files import fetch_code
    from yatt_core.input_building.settling import fetch_inputs
    from yatt_core.spec import parse_spec

    folder = home.run_folder(owner)
    store = store_of(ledger, owner, folder)
    fetch_inputs(folder, store)
    spec = parse_spec(dict(ledger.runs.revision(name).spec), f"the spec of run {name}")
    fetch_code(spec, folder, store)
    return spec


def iteration_range(text: str, last: int) -> tuple[int, int]:
    """Returns the first and the last iteration of `--iterations A:B`, both included, or A alone.

    last: the newest iteration.

    Raises `ConfigurationError`.
    """
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text, re.ASCII)
    if match is None:
        raise ConfigurationError(f"--iterations {text!r:.80}: expected A:B, such as 1:{last}")
    first = int(match[1])
    to = int(match[2] or match[1])
    if not 1 <= first <= to <= last:
        raise ConfigurationError(f"--iterations {text}: expected A:B with 1 <= A <= B <= {last}")
    return first, to
