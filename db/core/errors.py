"""The ledger's errors, with messages fit to be shown to a user. The flow maps them to its own failure classes."""

from __future__ import annotations


class LedgerError(Exception):
    """Base class of all errors that the ledger raises deliberately."""


class LedgerUnavailable(LedgerError):
    """The database cannot be reached, read or written (missing, locked, full, restarted); a retry may help.

    If a write raises it, the outcome of that write is unknown: a connection may break between COMMIT and its
    answer. So a driver does not repeat the write. It waits until the ledger answers, marks its open attempts as
    failed (`phases.fail_open`), and continues from the ledger's state, as it would after a crash.
    """


class LedgerFull(LedgerUnavailable):
    """The disk that holds the database is full: nothing was written, and a retry helps once there is space."""


class LedgerReadOnly(LedgerUnavailable):
    """This user cannot write to the ledger's file or its folder; nothing was written.

    The system may also have remounted a failing disk read-only, so if the ledger was writable before, this error means
    no more than that the ledger is unavailable.
    """


class LedgerAddressError(LedgerError):
    """The ledger's address is malformed, or names a database that is unsupported or whose driver is not installed."""


class LedgerVersionError(LedgerError):
    """The database is at a migration that this code does not work with."""


class RunNotFound(LedgerError):
    """No run, or more than one, matches the given name."""


class Fenced(LedgerError):
    """A newer term owns the run, or the lease was released: nothing was written, and the holder must stop."""


class LeaseHeld(LedgerError):
    """A live process holds the run.

    expires_in: seconds until the lease expires unless it is renewed.
    """

    def __init__(self, run: str, holder: str, expires_in: float) -> None:
        super().__init__(f"run {run} is held by {holder}; the lease expires in {expires_in:.1f} s unless it is renewed")
        self.run = run
        self.holder = holder
        self.expires_in = expires_in

    def __reduce__(self) -> tuple[type[LeaseHeld], tuple[str, str, float]]:
        return LeaseHeld, (self.run, self.holder, self.expires_in)


class AlreadyCommitted(LedgerError):
    """The iteration is already in the ledger; its commit is not repeated."""


class OutOfOrder(LedgerError):
    """The step does not follow from the ledger's state: a gap between iterations, or an attempt finished twice."""


class Conflict(LedgerError):
    """A row with this key exists and has different contents."""


class AliasRefused(LedgerError):
    """A checkpoint cannot have the alias: it is not kept, the alias does not exist, or the move would be pointless."""


class DeletionRefused(LedgerError):
    """The run cannot be deleted: it has begun, or a fork continues it."""


class AnnotationRefused(LedgerError):
    """A note or tag is invalid."""


class ApprovalNotFound(LedgerError):
    """No approval has the given number."""


class ApprovalRefused(LedgerError):
    """An approval cannot be asked or decided so, for example since it is decided already."""


class ApprovalForbidden(ApprovalRefused):
    """This person may not decide the approval."""


class QueueRefused(LedgerError):
    """The queue cannot do that: the run is in the queue already, or not, or its devices are taken."""


class SchedulerHeld(LedgerError):
    """Another process schedules the queue, and is alive."""


class PipelineNotFound(LedgerError):
    """There is no pipeline of this name."""
