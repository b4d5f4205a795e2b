"""What a service is, and when it is started again: pure data and a pure state machine that owns no I/O.

`ServiceLife` is fed with events (started, ready, died) and the time, and says when the next start is due. The runner in
`runner.py` feeds it from a real process; tests feed it from a simulated clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from yatt_core.errors import ConfigurationError

PLACEHOLDER = re.compile(r"\{(port(?:_[a-z]+)?|supervisor)\}")
SUPERVISOR = "supervisor"
READY_SCHEMES = ("http://", "tcp://", "log:")


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A process to keep running. `{port}` and `{port_NAME}` in argv, environment and ready become free loopback
    ports, `{supervisor}` the process id of the supervisor, whose working folder is `RUN/supervisor`.

    ready: `http://...` that answers 200, `tcp://host:port` that accepts, or `log:TEXT` that the service prints.
    log_file: absolute, appended to. stop_seconds: how long it may take to end in order before it is killed.
    start_seconds: not ready after that long, it counts as dead. needs: services that have to be ready before it is started,
    and that are ended only after it. offspring_survives: what it started lives on when it dies unasked; an end on purpose
    asks that first, for `stop_seconds`, then ends the service.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ready: str
    log_file: str
    restart: bool = True
    stop_seconds: float = 5.0
    start_seconds: float = 120.0
    needs: tuple[str, ...] = ()
    offspring_survives: bool = False

    def __post_init__(self) -> None:
        if not self.argv:
            raise ConfigurationError(f"service {self.name}: argv is empty; give the program and its arguments")
        if not self.ready.startswith(READY_SCHEMES):
            raise ConfigurationError(
                f"service {self.name}: ready is {self.ready!r}; it must start with one of {', '.join(READY_SCHEMES)}"
            )

    def port_names(self) -> tuple[str, ...]:
        """Names of the ports it wants, sorted."""
        texts = (*self.argv, *self.environment.values(), self.ready)
        return tuple(sorted({name for text in texts for name in PLACEHOLDER.findall(text)} - {SUPERVISOR}))


def ending_order(services: Sequence[ServiceSpec]) -> list[tuple[str, ...]]:
    """Names of services in the order in which they are ended: those of one step side by side, users before what they need.

    Raises `ConfigurationError` for needs that go in a circle or name no service.
    """
    left = {service.name: service.needs for service in services}
    steps = []
    while left:
        needed = {name for needs in left.values() for name in needs}
        step = tuple(name for name in left if name not in needed)
        if not step or needed - set(left):
            raise ConfigurationError(f"services {', '.join(left)}: needs {', '.join(sorted(needed))} cannot be met")
        steps.append(step)
        left = {name: needs for name, needs in left.items() if name not in step}
    return steps


def fill(text: str, numbers: Mapping[str, int]) -> str:
    """The text with its placeholders (ports, the supervisor's process id) replaced."""
    return PLACEHOLDER.sub(lambda match: str(numbers[match.group(1)]), text)


class ServiceState(StrEnum):
    """Where a service stands. WAITING: dead, to be started again. FAILED: dead for good. ENDED: ended on purpose."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Back-off doubles from first_delay to max_delay (seconds); the end is more than max_deaths in a window, or in a row of
    processes that never became ready.
    """

    first_delay: float = 0.5
    max_delay: float = 15.0
    max_deaths: int = 5
    window: float = 300.0

    def delay(self, deaths: int) -> float:
        """Seconds to wait after the n-th death within the window."""
        return min(self.first_delay * 2.0 ** min(deaths - 1, 60), self.max_delay)


@dataclass(frozen=True, slots=True)
class ServiceLife:
    """The state of a service. Times are seconds of one monotonic clock; starts counts all, the first included.

    vain: deaths in a row of processes that never became ready, however long each took to die.
    reason: why it is not ready, as far as there is more to say than the state. last_death: why it died last, kept for good.
    """

    state: ServiceState = ServiceState.WAITING
    start_at: float = 0.0
    starts: int = 0
    deaths: tuple[float, ...] = ()
    vain: int = 0
    reason: str = ""
    last_death: str = ""

    def is_due(self, now: float) -> bool:
        """Whether the service is to be started now."""
        return self.state is ServiceState.WAITING and now >= self.start_at

    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.state in (ServiceState.STARTING, ServiceState.READY)

    def started(self, now: float) -> ServiceLife:
        """A process was started."""
        if not self.is_due(now):
            raise ValueError(f"started at {now} in state {self.state}, due at {self.start_at}")
        return replace(self, state=ServiceState.STARTING, starts=self.starts + 1)

    def became_ready(self) -> ServiceLife:
        """Its readiness was seen."""
        if self.state is not ServiceState.STARTING:
            raise ValueError(f"ready in state {self.state}")
        return replace(self, state=ServiceState.READY, reason="")

    def died(self, now: float, reason: str, policy: RestartPolicy, restart: bool) -> ServiceLife:
        """Its process ended unasked: wait for the back-off, or give up."""
        if not self.is_running():
            raise ValueError(f"died in state {self.state}")
        deaths = (*(at for at in self.deaths if at > now - policy.window), now)
        vain = self.vain + 1 if self.state is ServiceState.STARTING else 0
        dead = replace(self, deaths=deaths, vain=vain, last_death=reason)
        count = max(len(deaths), vain)
        if not restart or count > policy.max_deaths:
            when = f"in {policy.window:g} s" if count == len(deaths) else "in a row, never ready"
            said = f"{reason}; gave up after {count} deaths {when}" if restart else reason
            return replace(dead, state=ServiceState.FAILED, reason=said)
        return replace(dead, state=ServiceState.WAITING, start_at=now + policy.delay(count), reason=reason)

    def ended(self) -> ServiceLife:
        """It was ended on purpose; a failed one stays failed."""
        return self if self.state is ServiceState.FAILED else replace(self, state=ServiceState.ENDED)
