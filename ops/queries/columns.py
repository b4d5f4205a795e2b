"""What an iteration of a workload of one's own learnt from: its sealed columns as a table.

Consumes the ledger and the run's folder. Produces facts of each column; verifies every file against the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from db.ledger import Ledger
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.presentation.columns import Column, Columns, Medium, SeveralCells
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.prepared import read_prepared_files
from yatt_core.workloads.columns import decode_columns
from yatt_core.workloads.contract import Array

FIRST = 8
"""Values that are shown of a column."""


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
    return current_spec(ledger, run).workload.is_language


def columns_of(ledger: Ledger, home: Home, run: str, iteration: int) -> list[ColumnFacts]:
    """Returns the columns of an iteration along the current line.

    Raises `RunNotFound`, `ConfigurationError` if none are recorded, and `DataError` if they are not here or damaged.
    """
    owner, branch, _ = ledger.commits.maker(run, iteration)
    done = ledger.phases.done(owner, branch, iteration, "prepare")
    if done is None or not done.receipt or "folder" not in done.receipt:
        raise ConfigurationError(f"run {run}: no columns of iteration {iteration} are recorded")
    folder = home.run_folder(owner)
    place = done.receipt["folder"]
    if not (folder / place).exists():
        raise DataError(f"{folder / place}: not on this machine, or pruned since nothing needs it any more")
    names = sorted(done.receipt["files"])
    contents = read_prepared_files(folder, place, done.receipt["files"], names)
    return [
        _facts(file, name, column)
        for file, data in zip(names, contents, strict=True)
        for name, column in sorted(decode_columns(data, f"{place}/{file}").items())
    ]


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
