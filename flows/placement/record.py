"""A run's recorded placements: each decision with the past work it was based on, and the work that followed.

Consumes the ledger and the files of every run on the line of iterations; produces plain values for `yatt placement`.
Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from db.ledger import Ledger
from db.write.records import DecisionRow
from flows.placement.disks import Disk, disks_during
from flows.placement.inputs import REMEMBERED
from flows.placement.seats import SeatSpan, seats_during
from flows.placement.work_files import RecordedWork, load_work, work_file
from flows.run.home import Home
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.placement.seen import IterationTelemetry

NEEDED = {"inputs": ("setting", "past", "state", "policy"), "decision": ("mode", "start", "state")}
"""Keys that a decision's row needs in order to be explained."""


@dataclass(frozen=True, slots=True)
class PastWork:
    """Past work that a decision names.

    telemetry: the work; None if its file is missing or changed.
    lost: the reason why the work is None; else empty.
    """

    run: str
    branch: int
    iteration: int
    telemetry: IterationTelemetry | None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPlacement:
    """A decision and its outcome.

    run, branch: the run and branch that made the iteration.
    committed: False if the iteration is still in progress.
    past: the work that the decision names.
    work: the iteration's own work; None before the commit, if no judge runs on a device, or if its file is lost.
    work_lost: why the file of the iteration's own work is lost; else empty.
    """

    run: str
    branch: int
    iteration: int
    committed: bool
    row: DecisionRow
    past: tuple[PastWork, ...]
    work: RecordedWork | None
    work_lost: str

    @property
    def telemetry(self) -> tuple[IterationTelemetry, ...]:
        """The past work among the policy's inputs, without lost files."""
        return tuple(each.telemetry for each in self.past if each.telemetry is not None)

    @property
    def lost(self) -> tuple[str, ...]:
        """The recorded inputs that are missing or changed, with the reasons."""
        return tuple(each.lost for each in self.past if each.lost)


@dataclass(slots=True)
class PlacementRecord:
    """Reads a run's placements along its current line.

    Consecutive decisions name the same files, so the most recent ones stay in memory.
    """

    ledger: Ledger
    home: Home
    run: str
    _load: Any = field(init=False)

    def __post_init__(self) -> None:
        self._load = lru_cache(maxsize=REMEMBERED + 2)(load_work)

    @property
    def last(self) -> int:
        """The latest iteration with a decision; 0 if there is none."""
        committed = self.ledger.runs.find(self.run).iteration
        run, branch, _ = self.ledger.commits.maker(self.run, committed + 1)
        return committed + 1 if self.ledger.records.decisions(run, branch, committed + 1) else max(0, committed)

    def at(self, iteration: int) -> RecordedPlacement:
        """Returns one iteration's placement.

        Raises `ConfigurationError` if it has none, or if its record lacks the inputs.
        """
        run, branch, committed = self.ledger.commits.maker(self.run, iteration)
        decisions = self.ledger.records.decisions(run, branch, iteration)
        if not decisions:
            known = f"1 to {self.last}" if self.last else "none yet"
            why = " (it is the policy before the first update)" if iteration == 0 else ""
            raise ConfigurationError(f"run {self.run}: iteration {iteration} has no placement{why}; available: {known}")
        row = decisions[-1]
        for part, keys in NEEDED.items():
            lacking = [key for key in keys if key not in getattr(row, part)]
            if lacking:
                raise ConfigurationError(
                    f"run {run}: the recorded placement of iteration {iteration} lacks {', '.join(lacking)}; "
                    "it can be neither explained nor replayed"
                )
        past = tuple(self._past(name) for name in row.inputs["past"])
        work, lost = self._work(run, branch, iteration, (row.outcome or {}).get("work_sha256"))
        return RecordedPlacement(
            run=run,
            branch=branch,
            iteration=iteration,
            committed=committed,
            row=row,
            past=past,
            work=work,
            work_lost=lost,
        )

    def seats(self, iteration: int) -> tuple[SeatSpan, ...]:
        """Returns where the actors were while an iteration was made; empty if that is not recorded."""
        run, branch, _ = self.ledger.commits.maker(self.run, iteration)
        return seats_during(self.ledger, run, branch, iteration)

    def disks(self, iteration: int) -> tuple[Disk, ...]:
        """Returns the disks with the run's folder while an iteration was made; empty if all nodes shared one."""
        run, branch, _ = self.ledger.commits.maker(self.run, iteration)
        return disks_during(self.ledger, run, branch, iteration)

    def between(self, first: int, last: int) -> Iterator[RecordedPlacement]:
        """Yields the placements of the iterations `first` to `last`, inclusive."""
        return (self.at(iteration) for iteration in range(first, last + 1))

    def _past(self, name: Mapping[str, Any]) -> PastWork:
        place = (str(name["run"]), int(name["branch"]), int(name["iteration"]))
        work, lost = self._work(*place, name["sha256"])
        return PastWork(*place, None if work is None else work.telemetry, lost)

    def _work(self, run: str, branch: int, iteration: int, sha256: str | None) -> tuple[RecordedWork | None, str]:
        if sha256 is None:
            return None, ""
        try:
            return self._load(work_file(self.home.run_folder(run), branch, iteration), sha256), ""
        except DataError as error:
            return None, str(error)
