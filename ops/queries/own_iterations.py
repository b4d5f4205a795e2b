"""An iteration of a workload of one's own as commands and pages show it: what it learnt from, its tables and its images.

Consumes the ledger and the run's folder. Produces each of the three that can be read, and a sentence for each that cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.columns import ColumnFacts, columns_of, tables_about
from ops.queries.images import IterationImages, has_images, iteration_images
from yatt_core.errors import DataError
from yatt_core.workloads.contract import Listing

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class OwnIteration:
    """What could be read of an iteration.

    tables: by title.
    images: in the order of the samples; none for a workload without them.
    problems: what could not be read, and why.
    """

    columns: list[ColumnFacts]
    tables: dict[str, Listing]
    images: IterationImages
    problems: tuple[str, ...]


def own_iteration(ledger: Ledger, home: Home, run: str, iteration: int) -> OwnIteration:
    """Returns what can be read of an iteration along the current line.

    Raises `RunNotFound`, and `ConfigurationError` if nothing is recorded.
    """
    problems: dict[str, None] = {}

    def read(what: Callable[[Ledger, Home, str, int], R], without: R) -> R:
        try:
            return what(ledger, home, run, iteration)
        except DataError as error:
            problems[str(error)] = None
            return without

    columns: list[ColumnFacts] = read(columns_of, [])
    tables: dict[str, Listing] = read(tables_about, {})
    images = IterationImages(run, iteration, ())
    if has_images(ledger, home, run, iteration):
        images = read(iteration_images, images)
    return OwnIteration(columns, tables, images, tuple(problems))
