"""Keeps two commands from driving the same sweep or soup at once, which would each take the other's drivers for its own.

Consumes the run that keeps the record; locks a file in its folder. The lease of that run will not do, since the run's own
driver needs it at times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flows.members.tags import Family
from flows.run.home import Home
from yatt_core.errors import DrivenElsewhereError
from yatt_core.file_lock import file_lock

LOCK = ".members.lock"


@contextmanager
def driving_alone(home: Home, family: Family, record: str) -> Iterator[None]:
    """Holds the right to drive a record's runs. Raises `DrivenElsewhereError` if another process of this host does."""
    with file_lock(home.run_folder(record) / LOCK) as alone:
        if not alone:
            raise DrivenElsewhereError(
                f"{family.kind} {record} is driven by another process on this host; wait for it (`yatt {family.kind} show "
                f"{record}` tells how far it is), or stop it with Ctrl-C where it runs, and resume then"
            )
        yield
