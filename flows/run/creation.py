"""Creates runs and loads their specs: rows in the ledger, the run's folder, the first outbox rows for the tracker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from db.ledger import Ledger
from db.write.outbox import CREATION, OutboxEntry
from flows.run.description import describing_tags, note_of
from flows.run.dotted_keys import dotted_text
from flows.run.home import Home
from flows.run.repositories import with_repositories
from flows.run.trackers import for_trackers
from yatt_core import durable
from yatt_core.code_files import settle_code
from yatt_core.secret_references import BlockReader
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.storage.run_store import NoStore


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run whose ledger is open and whose spec is loaded, for all that begins with them.

    spec: the latest revision.
    """

    home: Home
    ledger: Ledger
    run: str
    spec: RunSpec


@contextmanager
def new_run(
    home: Home, spec: RunSpec, copies: Path | None = None, by: str = "", read_block: BlockReader | None = None
) -> Iterator[OpenedRun]:
    """Creates a run, with its rows in the ledger, its folder and its copies of reward files; yields it, opened.

    What its spec names on the Hub is fetched first, so that the run names commits.

    copies: folder of another run from which to copy reward files; by default they are read where the spec names them.
    by: who creates it, for the audit chain.
    read_block: reads a Prefect block, for the token of a repository that is in one.
    """
    home.folder.mkdir(parents=True, exist_ok=True)
    spec = with_repositories(home.folder, spec, read_block=read_block, contents=True)
    with Ledger.open(home.ledger) as ledger:
        document = spec.model_dump(mode="json")
        run = ledger.runs.create(spec.name, document, spec.digest, spec.iterations, by=by).id
        finish_run(home, run, spec, copies)
        yield OpenedRun(home, ledger, run, spec)


def create_run(
    home: Home, spec: RunSpec, copies: Path | None = None, by: str = "", read_block: BlockReader | None = None
) -> str:
    """Creates a run as `new_run` does, and returns its id."""
    with new_run(home=home, spec=spec, copies=copies, by=by, read_block=read_block) as created:
        return created.run


def finish_run(home: Home, run: str, spec: RunSpec, copies: Path | None = None) -> None:
    """Gives a run that was created in the ledger its folder and its copies of reward files; safe to repeat.

    copies: folder of another run from which to copy reward files.
    """
    folder = home.run_folder(run)
    durable.make_folder(folder)
    write_spec(folder, spec)
    settle_code(spec, folder, NoStore(), copies)


def write_spec(folder: Path, spec: RunSpec) -> None:
    """Writes the spec in force to the run's folder, for people to read; the ledger's copy is authoritative."""
    durable.write_file(folder / "spec.yaml", yaml_text(spec.model_dump(mode="json")).encode())


def current_spec(ledger: Ledger, run: str) -> RunSpec:
    """Returns the latest revision of a run's spec."""
    return parse_spec(ledger.runs.revision(run).spec, f"the spec of run {run}")


@contextmanager
def opened_run(home: Home, name: str) -> Iterator[OpenedRun]:
    """Opens the home's ledger, which it migrates, and loads a run's spec."""
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.find(name).id
        yield OpenedRun(home, ledger, run, current_spec(ledger, run))


def load_run(home: Home, name: str) -> tuple[str, RunSpec]:
    """Returns a run's id and the latest revision of its spec."""
    with opened_run(home, name) as opened:
        return opened.run, opened.spec


def first_entries(run: str, spec: RunSpec) -> list[OutboxEntry]:
    """Returns the outbox rows that create and describe the run in its trackers; their ids are always the same."""
    now = int(time.time() * 1000)
    document = spec.model_dump(mode="json")
    tags = describing_tags(run, spec)
    entries = [
        OutboxEntry(f"{run}/run", CREATION, {"experiment": spec.tracking.experiment, "name": run}, now),
        OutboxEntry(f"{run}/params", "params", dotted_text(document), now),
        OutboxEntry(f"{run}/tags", "tags", tags, now),
        OutboxEntry(f"{run}/note", "note", {"text": note_of(run, spec)}, now),
        OutboxEntry(f"{run}/spec", "artifact", {"name": "spec.json", "text": json.dumps(document, indent=1)}, now),
    ]
    return for_trackers(spec, entries)
