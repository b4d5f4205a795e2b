"""What a policy may do, and the log of it: JSON lines from which another simulator gets the same times.

Instances are named by their number. Roles are `R` (rollout) and `J` (judge). Times are seconds from the iteration's start.
The record of a real run has one more kind of line, which is no action: from when on an instance served a role.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, SupportsIndex

from yatt_core.errors import ConfigurationError

ROLLOUT, JUDGE = "R", "J"
ROLE_NAMES = {ROLLOUT: "rollout", JUDGE: "judge"}
SERVES = "serves"


@dataclass(frozen=True, slots=True)
class Switch:
    """An empty instance goes over to another role."""

    instance: int
    role: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """A busy instance gets no more work and goes over when it is empty. migrate: its sequences move at the next boundary."""

    instance: int
    role: str
    migrate: bool


@dataclass(frozen=True, slots=True)
class Take:
    """The newest sequences of an instance return to the head of the queue."""

    instance: int
    count: int


@dataclass(frozen=True, slots=True)
class Intake:
    """An instance gets work only while it has less than this outstanding; None lifts the limit."""

    instance: int
    limit: int | None


Action = Switch | HandOver | Take | Intake
_NAMES: Mapping[type[Action], str] = {Switch: "switch", HandOver: "handover", Take: "take", Intake: "intake"}


def checked_action(action: object, instances: int) -> Action:
    """What a runtime policy asked for, with plain numbers, such as the log holds.

    Raises `ConfigurationError` for what is no action, and for one that names another role or instance than there are.
    """
    match action:
        case Switch():
            checked: Action = Switch(_number(action, action.instance), action.role)
        case HandOver():
            checked = HandOver(_number(action, action.instance), action.role, bool(action.migrate))
        case Take():
            checked = Take(_number(action, action.instance), _number(action, action.count))
        case Intake():
            limit = None if action.limit is None else _number(action, action.limit)
            checked = Intake(_number(action, action.instance), limit)
        case _:
            raise ConfigurationError(f"{action!r:.80} is no action")
    if checked.instance >= instances or (isinstance(checked, Switch | HandOver) and checked.role not in ROLE_NAMES):
        raise ConfigurationError(
            f"{action!r:.80} cannot be: there are instances 0 to {instances - 1}, and roles {', '.join(ROLE_NAMES)}"
        )
    return checked


def _number(action: Action, value: SupportsIndex) -> int:
    """A whole number of an action."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"{action!r:.80} cannot be: {value!r:.40} is no whole number from 0 on")
    return number


def ahead_of_dispatch(actions: Iterable[Action]) -> tuple[list[Action], list[Action]]:
    """Of what is done at the end of a switch: what applies before anything is dispatched, and what does behind it.

    Else the first instances that are ready take all that waits, and who is to switch is not empty any more.
    """
    listed = list(actions)
    ahead: list[Action] = [action for action in listed if isinstance(action, Intake | Switch)]
    return ahead, [action for action in listed if not isinstance(action, Intake | Switch)]


def action_line(action: Action) -> dict[str, Any]:
    """The action's own part of a log line."""
    return {"do": _NAMES[type(action)], **asdict(action)}


def serves_line(instance: int, role: str) -> dict[str, Any]:
    """The own part of a line that says from when on an instance has a role."""
    return {"do": SERVES, "instance": instance, "role": role}
