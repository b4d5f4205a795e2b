"""Runs that belong together: the one whose audit chain keeps their record, and its members, which tags in their specs name.

Consumes the ledger. Produces ids of runs, and forks. The record begins with a link of its own kind; a member's tags name the
record's run and what the member is, so that a member is found, and not made twice, whenever its maker died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.ledger import Ledger
from flows.branching.branches import finish_fork, fork
from flows.run.home import Home
from yatt_core.errors import ConfigurationError

SEARCHED = 1000
"""Number of newest runs among which records are searched."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of record, such as that of soups.

    kind: of the link with which a record begins, and the tag of its members; also what people call it.
    member_tag: the tag that tells members apart.
    """

    kind: str
    member_tag: str

    def records(self, ledger: Ledger) -> list[str]:
        """Returns the runs with a record among the newest runs, newest first."""
        return [row.id for row in ledger.runs.list(SEARCHED) if ledger.events.of_kind(row.id, self.kind)]

    def record_of(self, ledger: Ledger, run: str) -> str | None:
        """Returns the run that keeps the record to which a run belongs; None if it belongs to none."""
        return run if ledger.events.of_kind(run, self.kind) else tags_of(ledger, run).get(self.kind)

    def require_record(self, ledger: Ledger, run: str) -> str:
        """Returns the run that keeps the record to which a run belongs. Raises `ConfigurationError` if it belongs to none."""
        name = self.record_of(ledger, run)
        if name is None:
            known = ", ".join(self.records(ledger)) or "none yet"
            raise ConfigurationError(f"run {run} belongs to no {self.kind}; {self.kind}s: {known}")
        return name

    def tags(self, record: str, member: str) -> list[str]:
        """Returns the changes to a spec that make its run a member, as KEY=VALUE."""
        return [f"tracking.tags.{self.kind}={record}", f"tracking.tags.{self.member_tag}={member}"]

    def member_of(self, record: str, tags: Mapping[str, str]) -> str | None:
        """Returns what the run with these tags is in a record; None if it is no member."""
        return tags.get(self.member_tag) if tags.get(self.kind) == record else None

    def forks(self, ledger: Ledger, record: str) -> dict[str, str]:
        """Returns the members that are forks of the record's run, by what they are; of two that are the same, the first."""
        found: dict[str, str] = {}
        for each in ledger.overview.forks(record):
            member = self.member_of(record, tags_of(ledger, each.run))
            if member is not None:
                found.setdefault(member, each.run)
        return found


def tags_of(ledger: Ledger, run: str) -> Mapping[str, str]:
    """Returns the tags in the spec that a run began with."""
    tags: Mapping[str, str] = ledger.runs.revision(run, 1).spec["tracking"]["tags"]
    return tags


def maker_of(ledger: Ledger, run: str) -> str:
    """Returns who created a run; empty if nobody is known."""
    first = next(iter(ledger.events.of_kind(run, "spec_revision")), None)
    return "" if first is None else str(first.body.get("by", ""))


def whole_fork(home: Home, ledger: Ledger, run: str | None, start: str, overrides: Sequence[str]) -> str:
    """Returns a fork of a run at iteration 0, in the name of the run's maker.

    run: the fork, whose creation is finished if need be; None if it is to be created.
    overrides: changes to the spec, as KEY=VALUE.
    """
    if run is None:
        return fork(home, start, 0, overrides, by=maker_of(ledger, start)).run
    finish_fork(home, ledger, run)
    return run
