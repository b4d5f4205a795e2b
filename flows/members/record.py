"""The record of several runs in the audit chain of one of them, which names it: how it begins, and what all records have.

Consumes the ledger. Produces the first link of a record, which contains the spec of what is made of the runs, and reads links
back. A soup and a sweep add what they decide (`flows.soups.record`, `flows.sweeps.record`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from db.ledger import Ledger
from flows.members.tags import Family
from flows.prefect_io.secret_blocks import read_block
from flows.run.creation import create_run
from flows.run.home import Home
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.base import SpecModel


def create_record(home: Home, family: Family, spec: SpecModel, run: RunSpec, by: str) -> str:
    """Creates a record with its first run, which names it; returns the run's id.

    spec: of what is made of the runs, such as a sweep.
    by: who starts it, for the audit chains of its runs.
    """
    name = create_run(home, run, by=by, read_block=read_block)
    with Ledger.open(home.ledger) as ledger:
        begin_record(ledger, family, name, spec)
    return name


def begin_record(ledger: Ledger, family: Family, name: str, spec: SpecModel) -> None:
    """Adds the first link of a record to the chain of a run, unless it is there."""
    if not ledger.events.of_kind(name, family.kind):
        ledger.events.append(name, family.kind, {"spec": spec.model_dump(mode="json")})


@dataclass(frozen=True)
class FamilyRecord:
    """A record as the ledger has it.

    name: its first run.
    """

    family: ClassVar[Family]

    ledger: Ledger
    name: str

    @classmethod
    def of(cls, ledger: Ledger, run: str) -> Self:
        """Opens the record to which a run belongs. Raises `ConfigurationError` if it belongs to none."""
        return cls(ledger, cls.family.require_record(ledger, run))

    @property
    def begun_with(self) -> Any:
        """The spec in the record's first link, as plain values."""
        return self.bodies(self.family.kind)[0]["spec"]

    @cached_property
    def run_spec(self) -> RunSpec:
        """The spec of the first run, of which the specs of all others are changes."""
        return parse_spec(dict(self.ledger.runs.revision(self.name, 1).spec), f"the spec of run {self.name}")

    def bodies(self, kind: str) -> list[Mapping[str, Any]]:
        """Returns the contents of the record's links of a kind, in order."""
        return [link.body for link in self.ledger.events.of_kind(self.name, kind)]
