"""What a service is and when it is restarted: pure data and a pure state machine without I/O.

`ServiceLife` receives events (started, ready, died) with their times and determines when the next start is due.
`runner.py` supplies them from a real process; tests supply them from a simulated clock.
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
    """A process to keep running.

    In argv, environment and ready, `{port}` and `{port_NAME}` are replaced by free loopback ports and
    `{supervisor}` by the process id of the supervisor, whose working folder is `RUN/supervisor`.

    ready: `http://...` that answers 200, `tcp://host:port` that accepts a connection, or `log:TEXT` that the
        service prints.
    log_file: absolute path; output is appended.
    stop_seconds: the time the process may take to shut down cleanly before it is killed.
    start_seconds: a process that is not ready after this time counts as dead.
    needs: services that must be ready before this service is started, and that are ended only after it.
    offspring_survives: whether the processes that the service started stay alive if it dies unexpectedly. If it
        is ended on purpose, they are asked to end first, within `stop_seconds`, and it is ended after them.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ready: str
    log_file: str
    restart: bool = True
    stop_seconds: float = 5.0
    start_seconds: float = 300.0
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
        """Returns the names of the required ports, sorted."""
        texts = (*self.argv, *self.environment.values(), self.ready)
        return tuple(sorted({name for text in texts for name in PLACEHOLDER.findall(text)} - {SUPERVISOR}))


def ending_order(services: Sequence[ServiceSpec]) -> list[tuple[str, ...]]:
    """Returns the names of the services in the order in which they are ended; services in one step end in parallel.

    A service is ended before the services it needs. Raises `ConfigurationError` if the needs form a cycle or name an
    unknown service.
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
    """Returns the text with its placeholders (ports, the supervisor's process id) replaced."""
    return PLACEHOLDER.sub(lambda match: str(numbers[match.group(1)]), text)


class ServiceState(StrEnum):
    """The state of a service. WAITING: dead, will be restarted. FAILED: permanently dead. ENDED: ended on purpose."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When to restart a service: the delay doubles from first_delay to max_delay (seconds).

    The service is given up after more than max_deaths within a window, or after more than max_deaths
    consecutive processes that never became ready.
    """

    first_delay: float = 0.5
    max_delay: float = 15.0
    max_deaths: int = 5
    window: float = 300.0

    def delay(self, deaths: int) -> float:
        """Returns the seconds to wait after the n-th death within the window."""
        return min(self.first_delay * 2.0 ** min(deaths - 1, 60), self.max_delay)


@dataclass(frozen=True, slots=True)
class ServiceLife:
    """The state of a service. All times are in seconds of one monotonic clock.

    starts: the number of starts, including the first.
    vain: number of consecutive deaths of processes that never became ready, however long each process lived.
    reason: why the service is not ready, if the state alone does not say so.
    last_death: the reason for the most recent death; never cleared.
    """

    state: ServiceState = ServiceState.WAITING
    start_at: float = 0.0
    starts: int = 0
    deaths: tuple[float, ...] = ()
    vain: int = 0
    reason: str = ""
    last_death: str = ""

    def is_due(self, now: float) -> bool:
        """Returns True if the service should be started now."""
        return self.state is ServiceState.WAITING and now >= self.start_at

    def is_running(self) -> bool:
        """Returns True if the service has a process."""
        return self.state in (ServiceState.STARTING, ServiceState.READY)

    def started(self, now: float) -> ServiceLife:
        """Records that a process was started."""
        if not self.is_due(now):
            raise ValueError(f"started at {now} in state {self.state}, due at {self.start_at}")
        return replace(self, state=ServiceState.STARTING, starts=self.starts + 1)

    def became_ready(self) -> ServiceLife:
        """Records that the service is ready."""
        if self.state is not ServiceState.STARTING:
            raise ValueError(f"ready in state {self.state}")
        return replace(self, state=ServiceState.READY, reason="")

    def died(self, now: float, reason: str, policy: RestartPolicy, restart: bool) -> ServiceLife:
        """Records that the process ended unexpectedly: the service waits for the restart delay or is given up."""
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
        """Records that the service was ended on purpose; a failed one stays failed."""
        return self if self.state is ServiceState.FAILED else replace(self, state=ServiceState.ENDED)
