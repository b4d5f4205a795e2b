"""Repeats a logged placement: the same actions at the same times.

Consumes the lines of an action log (see `actions.py`); produces plans and runtime policies. Raises
`ConfigurationError` for a log that does not fit the run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import Action, HandOver, Intake, Switch, Take
from yatt_core.placement.moments import Moment
from yatt_core.placement.seen import IterationTelemetry, Plan, PoolSeen, Setting

_KINDS: Mapping[str, type[Action]] = {"switch": Switch, "handover": HandOver, "take": Take, "intake": Intake}


class Logged:
    """The plans of one workload's log."""

    def __init__(self, lines: Iterable[Mapping[str, Any]], workload: str, origin: str) -> None:
        self._roles: dict[int, str] = {}
        self._actions: dict[int, list[tuple[float, Action]]] = defaultdict(list)
        for number, line in enumerate(lines, 1):
            if line.get("workload") != workload:
                continue
            if line.get("do") == "roles":
                self._roles[line["iteration"]] = line["roles"]
            else:
                self._actions[line["iteration"]].append((line["t"], parse_action(line, f"{origin}, line {number}")))
        self._origin = origin

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Returns the logged plan of the iteration after the past ones."""
        iteration = len(past)
        if iteration not in self._roles:
            raise ConfigurationError(f"{self._origin}: no roles for iteration {iteration}")
        return Plan(self._roles[iteration], LoggedRuntimePolicy(self._actions[iteration]), None, "as logged")


class LoggedRuntimePolicy:
    """An iteration's actions in their order. Unlike other runtime policies it keeps its position in the log."""

    def __init__(self, actions: Iterable[tuple[float, Action]]) -> None:
        self._left = deque(actions)

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Returns the logged actions that are due.

        A switch of an instance that is still busy, and all actions after it, wait for a later call.
        """
        due: list[Action] = []
        while self._left and self._left[0][0] <= pool.now:
            action = self._left[0][1]
            if isinstance(action, Switch) and pool.instances[action.instance].outstanding:
                break
            due.append(action)
            self._left.popleft()
        return due


def parse_action(line: Mapping[str, Any], origin: str) -> Action:
    """Parses the action in a log line. Raises `ConfigurationError` for an invalid one.

    origin: the file and line that the message names.
    """
    kind = _KINDS.get(line.get("do", ""))
    fields = {key: value for key, value in line.items() if key not in ("do", "t", "workload", "iteration")}
    if kind is None or set(fields) != set(kind.__dataclass_fields__):
        known = ", ".join(("roles", *_KINDS))
        raise ConfigurationError(f"{origin}: not an action: {dict(line)}; known are {known}")
    return kind(**fields)
