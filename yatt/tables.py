"""A run's metrics as an Arrow table, and tables as data frames.

Consumes the ledger. Produces tables in a fixed order.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyarrow as pa

from db.ledger import Ledger
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd


def metrics_table(ledger: Ledger, run: str, keys: Sequence[str]) -> pa.Table:
    """Returns a column `iteration` and one of float64 for each metric. Raises `ConfigurationError` for an unknown key."""
    values: dict[str, dict[int, float]] = {}
    for point in ledger.metrics.points(run):
        values.setdefault(point.key, {})[point.step] = point.value
    unknown = [key for key in keys if key not in values]
    if unknown:
        near = difflib.get_close_matches(unknown[0], values, n=3) or sorted(values)[:10]
        raise ConfigurationError(f"run {run}: no metric {unknown[0]!r}; known: {', '.join(near) or 'none yet'}")
    chosen = list(keys) or sorted(values)
    steps = sorted({step for key in chosen for step in values[key]})
    columns = {key: pa.array([values[key].get(step) for step in steps], pa.float64()) for key in chosen}
    return pa.table({"iteration": pa.array(steps, pa.int64()), **columns})


def frame(table: pa.Table) -> pd.DataFrame:
    """Returns a table as a data frame. Raises `ConfigurationError` if pandas is not installed."""
    if find_spec("pandas") is None:
        raise ConfigurationError("pandas=True needs the package pandas: `pip install pandas`, or use the Arrow table")
    found: pd.DataFrame = table.to_pandas()
    return found
