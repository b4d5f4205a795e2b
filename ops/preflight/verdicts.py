"""The results of checks: the rows of `yatt doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its subject, what was found, and the remedy (empty if all is well)."""

    name: str
    verdict: CheckStatus
    found: str
    remedy: str = ""
