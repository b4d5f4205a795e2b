"""What an iteration of a workload of one's own learnt from: facts of its sealed columns, and the tables that it gives for people.

Consumes the ledger and the run's folder. Produces rows and the columns that show them; verifies every sealed file against the
ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from db.ledger import Ledger
from flows.phases.evaluation_tables import tables_of
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.presentation.columns import Column, Columns, Medium, SeveralCells
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.prepared import read_prepared_files
from yatt_core.workloads.columns import column_files, decode_columns
from yatt_core.workloads.contract import Array, Cell, Listing
from yatt_core.workloads.listings import SHOWN, decode_listing

FIRST = 8
"""Values that are shown of a column."""
IN_WORDS = "in words"
"""The title of the table that says what an iteration learnt from."""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column that a rank learnt from.

    file: the rank's file; all ranks share one, unless the workload samples.
    shape: its size in each dimension.
    least, mean, most: of its values; None for an empty column.
    first: its first values.
    """

    file: str
    name: str
    type: str
    shape: tuple[int, ...]
    least: float | None
    mean: float | None
    most: float | None
    first: tuple[float, ...]


def is_language(ledger: Ledger, run: str) -> bool:
    """Returns whether a run trains a language model, whose iterations have samples in place of columns."""
    return current_spec(ledger, run).has.language_model


def columns_of(ledger: Ledger, home: Home, run: str, iteration: int) -> list[ColumnFacts]:
    """Returns the columns of an iteration along the current line.

    Raises `RunNotFound`, `ConfigurationError` if none are recorded, and `DataError` if they are not here or damaged.
    """
    folder, place, files = _sealed(ledger, home, run, iteration)
    names = column_files(files)
    contents = read_prepared_files(folder, place, files, names)
    return [
        _facts(file, name, column)
        for file, data in zip(names, contents, strict=True)
        for name, column in sorted(decode_columns(data, f"{place}/{file}").items())
    ]


def tables_about(ledger: Ledger, home: Home, run: str, iteration: int) -> dict[str, Listing]:
    """Returns what a workload says for people, by title: what the iteration learnt from, and what its evaluation found.

    Raises as `columns_of` does.
    """
    owner, branch, _ = ledger.commits.maker(run, iteration)
    folder, place, files = _sealed(ledger, home, run, iteration)
    found: dict[str, Listing] = {}
    if SHOWN in files:
        (data,) = read_prepared_files(folder, place, files, [SHOWN])
        found[IN_WORDS] = decode_listing(data, f"{place}/{SHOWN}")
    tables = tables_of(home.run_folder(owner), branch, iteration)
    return found | {f"evaluation: {name.replace('_', ' ')}": table for name, table in tables.items()}


def cells_of(table: Listing) -> Columns[tuple[Cell, ...]]:
    """Returns the description of a workload's table."""
    return tuple(_column(name, number, table) for number, name in enumerate(table.columns))


def _column(name: str, number: int, table: Listing) -> Column[tuple[Cell, ...]]:
    numeric = all(isinstance(row[number], int | float) and not isinstance(row[number], bool) for row in table.rows)
    return Column(name, lambda row: row[number], number=numeric, style="" if numeric else "text", verbatim=True)


def _sealed(ledger: Ledger, home: Home, run: str, iteration: int) -> tuple[Path, str, Mapping[str, str]]:
    """Returns the folder of the run that made an iteration, the place of its columns below, and the SHA-256 of each file."""
    owner, branch, _ = ledger.commits.maker(run, iteration)
    done = ledger.phases.done(owner, branch, iteration, "prepare")
    if done is None or not done.receipt or "folder" not in done.receipt:
        raise ConfigurationError(f"run {run}: no columns of iteration {iteration} are recorded")
    folder = home.run_folder(owner)
    place = done.receipt["folder"]
    if not (folder / place).exists():
        raise DataError(f"{folder / place}: not on this machine, or pruned since nothing needs it any more")
    return folder, place, done.receipt["files"]


def _facts(file: str, name: str, column: Array) -> ColumnFacts:
    values = column.astype(np.float64) if column.size else None
    return ColumnFacts(
        file=file,
        name=name,
        type=column.dtype.name,
        shape=tuple(column.shape),
        least=None if values is None else float(values.min()),
        mean=None if values is None else float(values.mean()),
        most=None if values is None else float(values.max()),
        first=tuple(column.ravel()[:FIRST].astype(np.float64).tolist()),
    )


COLUMN_FACTS: Columns[ColumnFacts] = (
    Column("column", lambda column: column.name),
    Column("type", lambda column: column.type),
    Column("shape", lambda column: " × ".join(map(str, column.shape)) or "scalar", style="nowrap"),
    Column("least", lambda column: column.least, number=True),
    Column("mean", lambda column: column.mean, number=True),
    Column("most", lambda column: column.most, number=True),
    Column("first values", lambda column: SeveralCells(column.first, ", "), style="text", medium=Medium.PAGE),
    Column("file", lambda column: column.file, style="wide"),
)
