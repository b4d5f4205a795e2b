"""The parameters of a window, which `yatt window`, Prefect's form and its API take, and the plan they make.

Consumes the values, whose types Prefect has checked against the schema of the flow `ops.scheduled.window`. Produces a
`WindowPlan`: which run is driven, with which changes of its spec, and for how long. Pure; imports no Prefect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import StringConstraints

from flows.driver.windows import parse_duration
from yatt_core.errors import ConfigurationError
from yatt_core.problems import Problems

RunChoice = Literal["continue", "new"]
CONTINUE: Final = "continue"
NEW: Final = "new"
DurationText = Annotated[str, StringConstraints(pattern=r"^([0-9]+[dhms])+$")]
NO_OVERRIDES: dict[str, Any] = {}
TARGET = "iterations"
KEY = re.compile(r"[^\s=.]+(\.[^\s=.]+)*")


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What a window's parameters ask for.

    new_run: whether it drives a new run instead of the deployment's.
    changes: changes to the run's spec, as `--set` takes them.
    longest: the maximum duration of the window; None for no limit.
    """

    new_run: bool
    changes: tuple[str, ...]
    longest: timedelta | None


@dataclass(frozen=True, slots=True)
class WindowParameters:
    """The parameters of a window.

    run: whether the deployment's run is continued or a new run is started.
    overrides: values of the spec, by dotted key.
    iterations: the run's target; None to keep the one in the spec.
    window: the maximum duration, such as 8h; None for no limit.
    """

    run: RunChoice = CONTINUE
    overrides: Mapping[str, Any] = field(default_factory=dict)
    iterations: int | None = None
    window: str | None = None

    def plan(self) -> WindowPlan:
        """Returns what the parameters ask for. Raises `ConfigurationError`, with one line per mistake."""
        problems = Problems()
        changes = list[str]()
        longest = None
        for key, value in self.overrides.items():
            with problems.noting():
                changes.append(_change(key, value))
        if self.iterations is not None:
            changes.append(f"{TARGET}={self.iterations}")
            if TARGET in self.overrides:
                problems.note(ConfigurationError(f"{TARGET}: also in overrides; expected it in one of the two"))
        with problems.noting():
            longest = None if self.window is None else parse_duration(self.window, "window")
        problems.raise_any()
        return WindowPlan(self.run == NEW, tuple(changes), longest)

    def given(self) -> dict[str, Any]:
        """Returns the parameters that differ from their defaults, as plain values."""
        values = {"overrides": dict(self.overrides), TARGET: self.iterations, "window": self.window}
        return ({} if self.run == CONTINUE else {"run": self.run}) | {
            key: value for key, value in values.items() if value
        }


def _change(key: str, value: Any) -> str:
    """Returns an override as `--set` takes it. JSON is valid YAML, so strings, numbers and objects keep their types."""
    if not KEY.fullmatch(key):
        raise ConfigurationError(
            f"overrides: {key[:80]!r} is not a key of the spec; expected one such as 'trainer.optimizer.learning_rate'"
        )
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def parameters_text(given: Mapping[str, Any]) -> str:
    """Returns the parameters given for a window as one readable line; empty if there are none."""
    overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.get("overrides", {}).items()]
    return ", ".join(overrides + [f"{key}={value}" for key, value in given.items() if key != "overrides"])
