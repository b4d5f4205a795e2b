"""What a policy can do, and the log of its actions: JSON lines from which another simulator computes the same times.

Instances are identified by their number. Roles are `R` (rollout) and `J` (judge). Times are seconds since the
start of the iteration. The record of a real run has additional kinds of lines that are no actions: when an instance
started serving a role, and from when on the trainer kept its device, or lent it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, SupportsIndex

from yatt_core.errors import ConfigurationError

ROLLOUT = "R"
JUDGE = "J"
TRAINING = "T"
"""Takes the place of a role while the trainer keeps the instance's device."""
ROLE_NAMES = {ROLLOUT: "rollout", JUDGE: "judge"}
SERVES = "serves"
KEEPS = "keeps"
LENDS = "lends"


@dataclass(frozen=True, slots=True)
class Switch:
    """Moves an empty instance to another role."""

    instance: int
    role: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Moves a busy instance to another role: it gets no more work and switches once it is empty.

    migrate: move its sequences to other instances at the next boundary.
    """

    instance: int
    role: str
    migrate: bool


@dataclass(frozen=True, slots=True)
class Take:
    """Takes the `count` newest sequences away from an instance and puts them back at the head of the queue."""

    instance: int
    count: int


@dataclass(frozen=True, slots=True)
class Intake:
    """Lets an instance take work only while it has fewer than `limit` sequences outstanding; None removes the limit."""

    instance: int
    limit: int | None


Action = Switch | HandOver | Take | Intake
_NAMES: Mapping[type[Action], str] = {Switch: "switch", HandOver: "handover", Take: "take", Intake: "intake"}


def checked_action(action: object, instances: int) -> Action:
    """Returns the action that a runtime policy requested, with plain numbers as the log stores them.

    Raises `ConfigurationError` if it is not an action, or if its role or instance does not exist.
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
            raise ConfigurationError(f"{action!r:.80} is not an action")
    if checked.instance >= instances or (isinstance(checked, Switch | HandOver) and checked.role not in ROLE_NAMES):
        raise ConfigurationError(
            f"{action!r:.80} is not possible: instances are 0 to {instances - 1}, roles are {', '.join(ROLE_NAMES)}"
        )
    return checked


def _number(action: Action, value: SupportsIndex) -> int:
    """Returns a number in an action as an int. Raises `ConfigurationError` unless it is an integer of at least 0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"{action!r:.80} is not possible: {value!r:.40} must be an integer of at least 0")
    return number


def ahead_of_dispatch(actions: Iterable[Action]) -> tuple[list[Action], list[Action]]:
    """Splits the actions at the end of a switch into those to apply before dispatching and those to apply after it.

    If all were applied afterwards, the first instances that become ready would take everything that waits, and an
    instance about to switch would no longer be empty.
    """
    listed = list(actions)
    ahead: list[Action] = [action for action in listed if isinstance(action, Intake | Switch)]
    return ahead, [action for action in listed if not isinstance(action, Intake | Switch)]


def action_line(action: Action) -> dict[str, Any]:
    """Returns the action's part of a log line."""
    return {"do": _NAMES[type(action)], **asdict(action)}


def trainer_line(instance: int, kept: bool) -> dict[str, Any]:
    """Returns the part of a line that records that the trainer keeps an instance's device from now on, or lends it."""
    return {"do": KEEPS if kept else LENDS, "instance": instance}


def serves_line(instance: int, role: str, took_s: float | None = None) -> dict[str, Any]:
    """Returns the action's part of a line that records that an instance starts serving a role.

    took_s: measured seconds for which it was out of service; None if not measured.
    """
    measured = {} if took_s is None else {"took_s": took_s}
    return {"do": SERVES, "instance": instance, "role": role, **measured}
