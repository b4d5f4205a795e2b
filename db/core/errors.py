"""What the ledger refuses, with texts fit to be shown to a user. The flow maps them to its own failure classes."""

from __future__ import annotations


class LedgerError(Exception):
    """Base of every error that the ledger raises on purpose."""


class LedgerUnavailable(LedgerError):
    """The database cannot be reached, read or written (missing, locked, full, restarted); trying again may help.

    When it is raised by a write, nobody knows whether that was done: a connection may break between COMMIT and its answer.
    So a driver does not repeat the write. It waits until the ledger answers, fails what it had open (`phases.fail_open`),
    and goes on from what the ledger says, as after its own death.
    """


class LedgerFull(LedgerUnavailable):
    """The disk under the database is full: nothing was written, and trying again helps once there is room."""


class LedgerReadOnly(LedgerUnavailable):
    """This user may not write the ledger's file or its folder; nothing was written.

    A disk that fails may be remounted so too: of a ledger that was written before, it says no more than that it is away.
    """


class LedgerAddressError(LedgerError):
    """The address cannot be one of a ledger: unreadable, of another kind of database, or without its driver."""


class LedgerVersionError(LedgerError):
    """The database's migration is not the one that this code works with."""


class RunNotFound(LedgerError):
    """No run, or more than one, goes by the name given."""


class Fenced(LedgerError):
    """A newer term owns the run, or the lease was given back: nothing was written, and the holder must leave."""


class LeaseHeld(LedgerError):
    """Somebody alive holds the run. expires_in: seconds until the lease runs out unless it is renewed."""

    def __init__(self, run: str, holder: str, expires_in: float) -> None:
        super().__init__(f"run {run} is held by {holder}; the lease expires in {expires_in:.1f} s unless it is renewed")
        self.run = run
        self.holder = holder
        self.expires_in = expires_in

    def __reduce__(self) -> tuple[type[LeaseHeld], tuple[str, str, float]]:
        return LeaseHeld, (self.run, self.holder, self.expires_in)


class AlreadyCommitted(LedgerError):
    """The iteration stands in the ledger; its commit is not done again."""


class OutOfOrder(LedgerError):
    """The step does not follow from what the ledger holds: a gap between iterations, an attempt finished twice."""


class Conflict(LedgerError):
    """A row with this key exists and says something else."""


class AliasRefused(LedgerError):
    """A checkpoint cannot have the alias: it is not kept, there is no such alias, or it would make no sense."""
