"""A run's experience as Arrow tables, and exported as a folder of Parquet files that other programs read whole.

Consumes the ledger and the sealed shards that it names, verified against its digests; fetches from the object store what this
machine lacks. Produces tables in order of prompt and sample, and a folder with one file per iteration and nothing else, since
programs that read a folder take every file in it for data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from db.ledger import Ledger
from flows.files.storage import store_of
from flows.run.home import Home
from ops.queries.columns import is_language
from ops.queries.experience import IterationExperience, find_iteration, opened, sample_table
from ops.queries.images import has_images, is_here
from ops.queries.run_list import find_line
from ops.terminal.exporting import EXPORTS
from ops.terminal.image_export import image_table
from ops.terminal.lookup import find_run, iteration_range, opened_ledger
from yatt_core import durable
from yatt_core.checkpoints.export import new_folder, require_free
from yatt_core.errors import ConfigurationError
from yatt_core.experience.table import without_placeholders
from yatt_core.storage.lacking import fetch_lacking

DERIVED = ("tokens", "failed", "advantage", "validity")
"""Columns of samples that the experience does not contain."""
IDENTITY = b"yatt"
"""The key of each file's metadata under which its origin stands, as JSON."""
MISSING_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ExportedExperience:
    """An exported part of a run's experience.

    iterations: those that were written, ascending.
    lacking: those whose files were deleted, ascending.
    """

    run: str
    folder: Path
    iterations: tuple[int, ...]
    lacking: tuple[int, ...]
    samples: int
    bytes: int


def fetch_iteration(ledger: Ledger, home: Home, run: str, iteration: int) -> None:
    """Fetches an iteration's shards that the run's folder lacks from the object store, if the run has one."""
    owner, branch, _ = ledger.commits.maker(run, iteration)
    shards = ledger.records.shards(owner, branch, iteration)
    folder = home.run_folder(owner)
    if shards:
        fetch_lacking(store_of(ledger, owner, folder), folder, shards)


def samples_table(ledger: Ledger, home: Home, run: str, iteration: int) -> pa.Table:
    """Returns all columns of an iteration's experience and the derived ones, in order of prompt and sample.

    What was not scored is null.

    Raises `ConfigurationError` if nothing is recorded, `DataError` for a damaged file.
    """
    fetch_iteration(ledger, home, run, iteration)
    return _table_of(ledger, find_iteration(ledger, home, run, iteration))


def export_experience(
    home: Home,
    run: str,
    to: Path | None = None,
    iterations: str | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> ExportedExperience:
    """Writes a run's samples as a folder of Parquet files, one per committed iteration, all with the same columns.

    Of a workload of one's own, writes the images of its samples, with the columns of `image_table`.

    to: the folder, which must not exist yet; by default in `exports/` of the run's folder.
    iterations: A:B, both included, or A, all of which must have their files; None for all that still have them.
    advance: receives the number of iterations written, and of all.

    The columns are those of `samples_table` after `run` and `iteration`; an iteration without a column has nulls there. Raises
    `RunNotFound`; `ConfigurationError` if the folder exists or there is nothing to write; `DataError` for a missing or damaged
    file; and `StorageFullError` or `InfrastructureError` if writing fails. Nothing is left behind in these cases.
    """
    with opened_ledger(home) as ledger:
        name = find_run(ledger, run)
        target = to or home.run_folder(name) / EXPORTS / "experience"
        require_free(target)
        if not is_language(ledger, name):
            return _export_images(
                ledger=ledger, home=home, run=name, target=target, iterations=iterations, advance=advance
            )
        places, lacking = _places(ledger, home, name, iterations)
        schema = pa.unify_schemas([_schema_of(place) for place in places])
        durable.make_folder(target.parent)
        samples = 0
        with new_folder(target) as partial:
            for done, place in enumerate(places):
                advance(done, len(places))
                samples += _write(ledger, place, partial, schema)
            advance(len(places), len(places))
            size = sum(path.stat().st_size for path in partial.iterdir())
    return ExportedExperience(
        run=name,
        folder=target,
        iterations=tuple(place.number for place in places),
        lacking=tuple(lacking),
        samples=samples,
        bytes=size,
    )


def _export_images(
    ledger: Ledger, home: Home, run: str, target: Path, iterations: str | None, advance: Callable[[int, int], None]
) -> ExportedExperience:
    newest = find_line(ledger, run).iteration
    first, last = (1, newest) if iterations is None else iteration_range(iterations, newest)
    recorded = [number for number in range(first, last + 1) if has_images(ledger, home, run, number)]
    if not recorded:
        raise ConfigurationError(f"run {run}: its workload has shown no images that could be exported")
    lacking = [number for number in recorded if not is_here(ledger, home, run, number)]
    written = [number for number in recorded if number not in lacking]
    _require_files(run, lacking, is_refused=iterations is not None or not written)
    durable.make_folder(target.parent)
    samples = 0
    with new_folder(target) as partial:
        for done, number in enumerate(written):
            advance(done, len(written))
            table = image_table(ledger, home, run, number)
            _write_durably(table, _file_of(partial, number))
            samples += table.num_rows
        advance(len(written), len(written))
        size = sum(path.stat().st_size for path in partial.iterdir())
    return ExportedExperience(
        run=run, folder=target, iterations=tuple(written), lacking=tuple(lacking), samples=samples, bytes=size
    )


def _require_files(run: str, lacking: list[int], is_refused: bool) -> None:
    """Raises `ConfigurationError` for iterations without files, if they are refused."""
    if lacking and is_refused:
        shown = ", ".join(map(str, lacking[:MISSING_SHOWN])) + (", ..." if len(lacking) > MISSING_SHOWN else "")
        raise ConfigurationError(
            f"run {run}: the files of iteration {shown} are gone; `retention.experience: all` in the spec keeps them"
        )


def _table_of(ledger: Ledger, place: IterationExperience) -> pa.Table:
    known = sample_table(ledger, place).rows
    shards = []
    for shard in place.shards:
        with opened(place.folder, shard) as file:
            shards.append(file.read(use_threads=False))
    table = known.select([])
    if shards:
        table = without_placeholders(pa.concat_tables(shards).take(known["position"]))
    for name in DERIVED:
        table = table.append_column(name, known[name])
    return table.combine_chunks()


def _places(
    ledger: Ledger, home: Home, run: str, iterations: str | None
) -> tuple[list[IterationExperience], list[int]]:
    """Returns the iterations to write, whose files are on this machine then, and those whose files were deleted.

    Raises `ConfigurationError` if there is none, or one that was chosen has no files.
    """
    committed = [iteration for iteration, _ in ledger.commits.experience_digests(run)]
    if not committed:
        raise ConfigurationError(f"run {run}: no committed iteration has experience")
    first, last = (1, committed[-1]) if iterations is None else iteration_range(iterations, committed[-1])
    places = []
    lacking = []
    for number in committed:
        if not first <= number <= last:
            continue
        fetch_iteration(ledger, home, run, number)
        place = find_iteration(ledger, home, run, number)
        if not place.shards:  # it has drawn nothing
            continue
        if all((place.folder / shard.folder).is_dir() for shard in place.shards):
            places.append(place)
        else:
            lacking.append(number)
    _require_files(run, lacking, is_refused=iterations is not None or not places)
    return places, lacking


def _schema_of(place: IterationExperience) -> pa.Schema:
    """Returns the columns of an iteration's file, all of which may be null."""
    with opened(place.folder, place.shards[0]) as file:
        sealed = file.schema_arrow
    fields = [
        pa.field("run", pa.string()),
        pa.field("iteration", pa.int64()),
        *[pa.field(field.name, field.type) for field in sealed],
        pa.field("tokens", pa.int64()),
        pa.field("failed", pa.bool_()),
        pa.field("advantage", pa.float64()),
        pa.field("validity", pa.string()),
    ]
    return pa.schema(fields)


def _write(ledger: Ledger, place: IterationExperience, folder: Path, schema: pa.Schema) -> int:
    """Writes an iteration's file durably; returns the number of its samples."""
    table = _table_of(ledger, place)
    own = {
        **{name: table[name] for name in table.column_names},
        "run": pa.array([place.run] * table.num_rows, pa.string()),
        "iteration": pa.array([place.number] * table.num_rows, pa.int64()),
    }
    columns = [own.get(field.name, pa.nulls(table.num_rows, field.type)) for field in schema]
    origin = {
        "run": place.owner,
        "branch": place.branch,
        "iteration": place.number,
        "shards": {shard.folder: shard.manifest_sha256 for shard in place.shards},
    }
    whole = pa.table(columns, schema=schema.with_metadata({IDENTITY: json.dumps(origin).encode()}))
    _write_durably(whole, _file_of(folder, place.number))
    return int(whole.num_rows)


def _file_of(folder: Path, iteration: int) -> Path:
    return folder / f"i{iteration:06d}.parquet"


def _write_durably(table: pa.Table, path: Path) -> None:
    with durable.refusals(f"{path}: cannot be written"):
        pq.write_table(table, path, compression="zstd")
        durable.sync_file(path)
