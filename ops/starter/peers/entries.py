"""What a peer's file says, and the verdict on each of its keys: plain data, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ops.starter.peers.secrets import shown


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A key of a file.

    key: as the file has it; nested keys are joined by dots.
    value: plain data, as YAML reads it.
    line: of the file, from 1.
    """

    key: str
    value: Any
    line: int

    @property
    def shown(self) -> Any:
        """The value for people; that of a secret is hidden."""
        return shown(self.key, self.value)


@dataclass(frozen=True, slots=True)
class PeerFile:
    """What a file says.

    program: name of the program that reads it, if the file says so.
    entries: each key once, in the order of the file.
    processes: number of processes that the file's launcher starts; None if it does not say.
    """

    program: str | None
    entries: tuple[ConfigEntry, ...]
    processes: int | None = None


class List(StrEnum):
    """The list that a key of the file is in."""

    TAKEN = "taken"
    DIFFERENT = "different"
    WITHOUT_COUNTERPART = "without_counterpart"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """What became of a key.

    key: as the file or, for a default, the peer has it.
    value: of the file, or the peer's default.
    line: of the file; None for a default.
    to: the spec's keys that say the same, with their values; empty if none is needed, or none exists.
    why: what is to be known about it; empty if nothing is.
    """

    key: str
    value: Any
    line: int | None = None
    to: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
