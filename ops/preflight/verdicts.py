"""What a look at the machine found: the rows of `yatt doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a look found."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One look: what at, what was found, and what to do about it (empty where all is well)."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
