"""A spec that is being written from a peer's keys, with a verdict on each of them.

Consumes entries and the peer's known keys with their defaults. Produces a tree of the spec and the lists. Raises
`ConfigurationError`, which names the file, line and key, for a value that cannot be kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NoReturn

from ops.starter.peers.entries import ConfigEntry, KeyVerdict, List
from ops.starter.peers.hydra import DELETES
from ops.starter.peers.interpolation import MISSING, resolved
from ops.starter.peers.own_defaults import default_of
from ops.starter.peers.programs import Program
from yatt_core.errors import ConfigurationError

_ABSENT = object()
UNSET = -1
"""What peers have in place of a number that is not set."""


class Draft:
    """The spec's tree and the verdicts so far."""

    def __init__(self, file: str, program: Program, entries: Sequence[ConfigEntry]) -> None:
        """Begins a draft.

        file: for messages.
        program: what reads the file; all others here call its keys by their present names.
        """
        self.file = file
        self.label = program.label
        self.tree: dict[str, Any] = {}
        self.lists: dict[List, list[KeyVerdict]] = {name: [] for name in List}
        self.defaults: list[KeyVerdict] = []
        self._entries = {program.present(entry.key): entry for entry in entries}
        self._known = program.defaults
        self._older = frozenset(program.older.values())
        self._done: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        """Returns the file's value of a key, or the peer's default; None if there is neither."""
        value = self._value(key)
        return None if value is MISSING else resolved(value, key, self._value)

    def _value(self, key: str) -> Any:
        entry = self._entries.get(key)
        return self._known.get(key, MISSING) if entry is None else entry.value

    def given(self, key: str) -> bool:
        """Returns whether the file has a key."""
        return key in self._entries

    def called(self, key: str) -> str | None:
        """Returns what the file calls a key, whatever the version whose name it is; None if it has none of them."""
        entry = self._entries.get(key)
        return None if entry is None else entry.key

    def deleted(self) -> list[str]:
        """Returns the keys that the file deletes, by their present names."""
        return [key.removeprefix(DELETES) for key in self._entries if key.startswith(DELETES)]

    def default(self, key: str) -> Any:
        """Returns the peer's default of a key; of one that has others below it, whether any of them is set. None if unset."""
        if any(value is not None for name, value in self._known.items() if name.startswith(f"{key}.")):
            return True
        return self._known.get(key)

    def knows(self, key: str) -> bool:
        """Returns whether the peer has a key, or others below it."""
        return self._knows(key) or any(name.startswith(f"{key}.") for name in self._known)

    def below(self, prefix: str) -> dict[str, Any]:
        """Returns the file's values of the keys below a prefix, by the rest of their names."""
        return {
            key[len(prefix) + 1 :]: entry.value for key, entry in self._entries.items() if key.startswith(f"{prefix}.")
        }

    def write(self, path: str, value: Any) -> None:
        """Writes a value into the spec, without a verdict.

        Refuses to replace another value: what a verdict has listed as written stays so.
        """
        node = self.tree
        *above, last = path.split(".")
        for part in above:
            node = node.setdefault(part, {})
        if last in node and node[last] != value:
            raise ConfigurationError(
                f"{self.file}: {path} would be both {node[last]!r} and {value!r}, by different keys of it; leave one of them out"
            )
        node[last] = deepcopy(value)  # what is written below it later is no part of what this verdict lists

    def takes(self, key: str, to: Mapping[str, Any] | None = None, why: str = "") -> None:
        """Writes what says the same as a key. A default is written, and listed, where it is not YATT's own."""
        values = {} if to is None else to
        if not self.given(key):
            values = {path: value for path, value in values.items() if default_of(path, self.tree) != value}
            if not values:
                return
        self._verdict(List.TAKEN, key, values, why)

    def differs(self, key: str, why: str, to: Mapping[str, Any] | None = None) -> None:
        """Writes what comes closest to a key, and lists what is different."""
        self._verdict(List.DIFFERENT, key, {} if to is None else to, why)

    def lacks(self, key: str, why: str) -> None:
        """Lists a key of the file that has no counterpart; a default is nothing that the file asks for."""
        if self.given(key):
            self._verdict(List.WITHOUT_COUNTERPART, key, {}, why)

    def notes(self, what: str, value: Any, why: str) -> None:
        """Lists, among the defaults, what the peer does for which it has no key."""
        self.defaults.append(KeyVerdict(key=what, value=value, line=None, to={}, why=why))

    def place(self, key: str) -> str:
        """Returns where a key is, for messages."""
        entry = self._entries.get(key)
        if entry is None:
            return f"{self.file}: {key} = {self[key]!r}, the default of {self.label}"
        return f"{self.file}, line {entry.line}: {entry.key} = {entry.shown!r}"

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raises an error about a key whose value cannot be kept."""
        raise ConfigurationError(f"{self.place(key)}: {why}")

    def number(self, key: str, least: float = 0) -> int:
        """Returns a whole number; refuses what is none, or less than it may be."""
        value = _as_number(self[key])
        if value is None and self._known.get(key) == UNSET:
            return UNSET  # null says it as well
        if value is None or not math.isfinite(value) or int(value) != value or value < least:
            self.refuse(key, f"expected a whole number of {least:g} or more")
        return int(value)

    def real(self, key: str) -> float:
        """Returns a number; refuses what is none."""
        value = _as_number(self[key])
        if value is None:
            self.refuse(key, "expected a number")
        return float(value)

    def truth(self, key: str) -> bool:
        """Returns whether a key is true; refuses what is neither true nor false."""
        value = self[key]
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "expected true or false")
        return bool(value)

    def quotient(self, whole: int, part: int, what: str, key: str) -> int:
        """Returns how often a part is in a whole; refuses a rest.

        what: says in words what is divided by what.
        """
        if part <= 0 or whole % part:
            self.refuse(key, f"{what}: {whole} is not a multiple of {part}, so that the steps would differ in size")
        return whole // part

    def finish(self, reasons: Mapping[str, str]) -> None:
        """Lists all keys without a verdict.

        reasons: by the beginning of a key, why it has no counterpart; the longest that fits counts.
        """
        for key, entry in self._entries.items():
            if key in self._done:
                continue
            if entry.value is None and self._known.get(key, _ABSENT) is None:
                self.takes(key, {}, "unset, as by default")
            elif self._knows(key):
                fitting = [
                    prefix for prefix in reasons if key == prefix or key.startswith(f"{prefix}.") or prefix == "*"
                ]
                self.lacks(key, reasons[max(fitting, key=lambda prefix: (prefix != "*", len(prefix)))])
            else:
                why = f"not known to YATT as a key of {self.label}"
                self.lists[List.UNKNOWN].append(KeyVerdict(entry.key, entry.shown, entry.line, why=why))
                self._done.add(key)

    def unlisted(self) -> list[ConfigEntry]:
        """Returns the entries without a verdict."""
        return [entry for key, entry in self._entries.items() if key not in self._done]

    def _knows(self, key: str) -> bool:
        """Returns whether the peer has a key; below a mapping that is empty by default, everything is its key."""
        if key in self._known or key in self._older:
            return True
        parts = key.split(".")
        return any(self._known.get(".".join(parts[:count]), _ABSENT) == {} for count in range(1, len(parts)))

    def _verdict(self, name: List, key: str, to: Mapping[str, Any], why: str) -> None:
        for path, value in to.items():
            self.write(path, value)
        entry = self._entries.get(key)
        if entry is None:
            self.defaults.append(KeyVerdict(key=key, value=self[key], line=None, to=dict(to), why=why))
            return
        assert key not in self._done, f"{key} has two verdicts"
        self._done.add(key)
        self.lists[name].append(KeyVerdict(key=entry.key, value=entry.shown, line=entry.line, to=dict(to), why=why))


def _as_number(value: Any) -> float | None:
    """Returns a number, which argument parsers and YAML read with underscores as well; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(_\d+)+", value):
        return int(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
