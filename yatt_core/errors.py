"""Failures as data: each has a class that determines its budget, the response to it and the exit code.

A failure crosses process boundaries (Ray pickles it), so its constructor takes only the message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class FailureClass(StrEnum):
    """The kind of failure; budgets and responses are defined per class (RECOVERY: budgets)."""

    INFRASTRUCTURE = "infrastructure"
    DATA = "data"
    NUMERIC = "numeric"
    CONFIGURATION = "configuration"
    FENCED = "fenced"
    AWAY = "away"
    ACTOR_LOST = "actor_lost"


IS_AWAY = " is away: "
"""Stands between the name and the reason in the text of an `AwayError`."""


class ExitCode:
    """The command line's exit codes."""

    OK = 0
    FAILURE = 1
    CONFIGURATION = 2
    LEASE_HELD = 3
    PAUSED = 4
    INTERRUPTED = 130


class YattError(Exception):
    """Base class of every error that YATT raises on purpose; its text can be shown to a user."""

    failure_class: ClassVar[FailureClass] = FailureClass.INFRASTRUCTURE
    exit_code: ClassVar[int] = ExitCode.FAILURE


class InfrastructureError(YattError):
    """A process, machine, network or disk failed; a retry may succeed."""


class AwayError(InfrastructureError):
    """Something outside of YATT does not answer; it is waited for. The text begins with its name and `is away: `."""

    failure_class = FailureClass.AWAY

    @property
    def dependency(self) -> str:
        """The name of what is away."""
        return str(self).partition(IS_AWAY)[0]

    @property
    def reason(self) -> str:
        """Why it counts as away, without its name."""
        return str(self).partition(IS_AWAY)[2]


class LostActorError(InfrastructureError):
    """An actor's process ended without an error of its own, as by SIGKILL, for lack of memory, or with its node."""

    failure_class = FailureClass.ACTOR_LOST


class RefusedRowError(InfrastructureError):
    """A tracker refuses a row for what the row says; sent again, it is refused again."""


class CutError(InfrastructureError):
    """Work was abandoned, because the time for it is over and enough of the rest is finished."""


class StorageFullError(InfrastructureError):
    """A disk is full or a quota exhausted; durable data is kept. A retry succeeds once space is available."""


class StuckError(InfrastructureError):
    """Work was not finished by its deadline; the message names the stuck actor and its position in the code."""


class DataError(YattError):
    """The input or a reward function is at fault; a retry fails in the same way."""

    failure_class = FailureClass.DATA


class TooLongError(DataError):
    """A prompt does not fit into the tokens that it may have.

    tokens: number of tokens of the prompt; 0 if unknown.
    """

    tokens: int = 0


class UnreadableResponseError(DataError):
    """A reward function cannot read a response: the policy is at fault, so the sample scores 0 and the run continues."""


class NumericError(YattError):
    """A loss or gradient is not finite."""

    failure_class = FailureClass.NUMERIC


class ReplayError(NumericError):
    """A replayed update differs from what its commit recorded; a retry produces the same difference."""


class AlignmentError(NumericError):
    """In an aligned run, log-probabilities of trainer and sampler differ; a retry computes the same."""


class ConfigurationError(YattError):
    """The spec, a path or an option is wrong; the message says what, where, and what is expected."""

    failure_class = FailureClass.CONFIGURATION
    exit_code = ExitCode.CONFIGURATION


class DriftError(ConfigurationError):
    """A replay is required, but the environment differs from the one in which the updates were made."""


class DrivenElsewhereError(YattError):
    """Another process drives the sweep or the soup."""

    failure_class = FailureClass.FENCED
    exit_code = ExitCode.LEASE_HELD


class FencedError(YattError):
    """A newer term owns the run; this holder must exit without another write."""

    failure_class = FailureClass.FENCED
    exit_code = ExitCode.LEASE_HELD
