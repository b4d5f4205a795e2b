"""Failures as data: each has a class that decides its budget, its answer and the exit code.

A failure crosses process borders (Ray pickles it), so its constructor takes the message alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class FailureClass(StrEnum):
    """What kind of thing went wrong; budgets and answers are kept by class (RECOVERY: budgets)."""

    INFRASTRUCTURE = "infrastructure"
    DATA = "data"
    NUMERIC = "numeric"
    CONFIGURATION = "configuration"
    FENCED = "fenced"


class ExitCode:
    """The command line's exit codes."""

    OK = 0
    FAILURE = 1
    CONFIGURATION = 2
    LEASE_HELD = 3
    PAUSED = 4
    INTERRUPTED = 130


class YattError(Exception):
    """Base of every error that YATT raises on purpose; its text is fit to be shown to a user."""

    failure_class: ClassVar[FailureClass] = FailureClass.INFRASTRUCTURE
    exit_code: ClassVar[int] = ExitCode.FAILURE


class InfrastructureError(YattError):
    """A process, machine, network or disk failed; trying again may help."""


class CutError(InfrastructureError):
    """Work is not waited for any more: it was over-dispatched, and enough of it is done."""


class StorageFullError(InfrastructureError):
    """A disk or a quota is full; what was durable before stays. Trying again helps once there is room."""


class StuckError(InfrastructureError):
    """Work was not done by its deadline; the text names the actor that is stuck and where its code stands."""


class DataError(YattError):
    """The input or a reward function is at fault; trying again gives the same failure."""

    failure_class = FailureClass.DATA


class NumericError(YattError):
    """A loss or gradient is not finite."""

    failure_class = FailureClass.NUMERIC


class ReplayError(NumericError):
    """A replayed update differs from what its commit recorded: trying again gives the same difference."""


class ConfigurationError(YattError):
    """The spec, a path or an option is wrong; says what, where, and what would be right."""

    failure_class = FailureClass.CONFIGURATION
    exit_code = ExitCode.CONFIGURATION


class DriftError(ConfigurationError):
    """A replay is needed, and the environment is not the one in which the updates were made."""


class FencedError(YattError):
    """A newer term owns the run; this holder must leave without another write."""

    failure_class = FailureClass.FENCED
    exit_code = ExitCode.LEASE_HELD
