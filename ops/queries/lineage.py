"""The lineage of a checkpoint, and the tree of the run's branches and forks.

Consumes the ledger and the manifests in the run folders; produces `LineageView`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from db.ledger import Ledger
from flows.reports.lineage import BranchNode, Lineage, branch_nodes, lineage_of
from flows.run.home import Home
from ops.presentation.columns import Column, Columns, DigestCell
from ops.queries.run_list import find_line
from yatt_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LineageView:
    """The branches of a run, and the lineage of a checkpoint.

    lineage: None if there is no such checkpoint.
    missing: why there is no lineage; empty if there is one.
    """

    run: str
    branches: tuple[BranchNode, ...]
    lineage: Lineage | None
    missing: str


def lineage(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int | None = None,
    branch: int | None = None,
    term: int | None = None,
) -> LineageView:
    """Returns the lineage of a checkpoint, on the current branch unless another is given.

    If several checkpoints match, the newest is used. Raises `RunNotFound`, also for an unknown branch.
    """
    find_line(ledger, run)
    try:
        found = lineage_of(ledger=ledger, home=home, run=run, iteration=iteration, branch=branch, term=term)
        missing = ""
    except ConfigurationError as error:
        found = None
        missing = str(error)
    return LineageView(run, found.branches if found else branch_nodes(ledger, run), found, missing)


def _changes(mark: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {before or '-'} → {now or '-'}" for name, (before, now) in mark["changes"].items())


DRIFT: Columns[Mapping[str, Any]] = (
    Column("run", lambda mark: mark["run"], heads=True),
    Column("at", lambda mark: str(mark["at"]), number=True),
    Column("replayed", lambda mark: str(mark["replayed"]), number=True),
    Column("changes", _changes, style="break"),
)
REVISIONS: Columns[Mapping[str, Any]] = (
    Column("revision", lambda row: str(row["revision"]), number=True),
    Column("digest", lambda row: DigestCell(row["digest"])),
    Column("reason", lambda row: row["reason"], style="break"),
)
