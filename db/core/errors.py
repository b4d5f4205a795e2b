"""The ledger's errors, with messages fit to be shown to a user. The flow maps them to its own failure classes.

Each class has the exit code of a command that it ends, as those of `yatt_core` have; a test compares the numbers.
"""

from __future__ import annotations

from typing import ClassVar

from db.core.subjects import in_words

FAILURE_CODE = 1
CONFIGURATION_CODE = 2
LEASE_HELD_CODE = 3


class LedgerError(Exception):
    """Base class of all errors that the ledger raises deliberately."""

    exit_code: ClassVar[int] = FAILURE_CODE


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

    exit_code = CONFIGURATION_CODE


class LedgerAddressError(LedgerError):
    """The ledger's address is malformed, or names a database that is unsupported or whose driver is not installed."""

    exit_code = CONFIGURATION_CODE


class LedgerVersionError(LedgerError):
    """The database is at a migration that this code does not work with."""

    exit_code = CONFIGURATION_CODE


class RunNotFound(LedgerError):
    """No run, or more than one, matches the given name."""

    exit_code = CONFIGURATION_CODE


class Fenced(LedgerError):
    """A newer term owns the subject, or the lease was released: nothing was written, and the holder must stop."""

    exit_code = LEASE_HELD_CODE


class LeaseHeld(LedgerError):
    """A live process holds the lease of a subject (`db.core.subjects`).

    expires_in: seconds until the lease expires unless it is renewed.
    """

    exit_code = LEASE_HELD_CODE

    def __init__(self, subject: str, holder: str, expires_in: float) -> None:
        super().__init__(
            f"{in_words(subject)} is held by {holder}; the lease expires in {expires_in:.1f} s unless it is renewed"
        )
        self.subject = subject
        self.holder = holder
        self.expires_in = expires_in

    def __reduce__(self) -> tuple[type[LeaseHeld], tuple[str, str, float]]:
        return LeaseHeld, (self.subject, self.holder, self.expires_in)


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

    exit_code = CONFIGURATION_CODE


class ApprovalRefused(LedgerError):
    """An approval cannot be asked or decided so, for example since it is decided already."""

    exit_code = CONFIGURATION_CODE


class ApprovalForbidden(ApprovalRefused):
    """This person may not decide the approval."""


class QueueRefused(LedgerError):
    """The queue cannot do that: the run is in the queue already, or not, or its devices are taken."""

    exit_code = CONFIGURATION_CODE


class PipelineNotFound(LedgerError):
    """There is no pipeline of this name."""

    exit_code = CONFIGURATION_CODE
