"""Keeps two commands from driving the same sweep or soup at once, on this host or on two.

Consumes the run that keeps the record; takes the lease of its sweep or soup, which is another one than the run's: the run's own
driver needs that one at times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from db.core.errors import LeaseHeld
from db.core.subjects import subject_of
from db.ledger import Ledger
from flows.members.tags import Family
from flows.run.home import Home
from flows.run.lease import LeaseKeeper, held
from yatt_core.errors import DrivenElsewhereError


@contextmanager
def driving_alone(home: Home, ledger: Ledger, family: Family, record: str) -> Iterator[LeaseKeeper]:
    """Holds the right to drive a record's runs. Raises `DrivenElsewhereError` if another process has it."""
    with ExitStack() as stack:
        subject = subject_of(family.kind, record)
        try:
            lease = stack.enter_context(held(ledger, subject, f"yatt {family.kind} of {record}"))
        except LeaseHeld as error:
            raise DrivenElsewhereError(
                f"{family.kind} {record} is driven by another process, {error.holder}; wait for it (`yatt {family.kind} show "
                f"{record}` tells how far it is), or stop it with Ctrl-C where it runs, and resume then. If its host is lost, "
                f"its lease ends in {error.expires_in:.0f} s"
            ) from error
        yield lease
