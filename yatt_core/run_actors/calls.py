"""Waiting for a run's actors: every wait has a deadline, and every failure a name.

Consumes Ray references and who is to answer them; produces values. A lost actor is an `InfrastructureError` that names it and
is booked with the registry, a missed deadline a `StuckError` that names who is stuck, and where.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray

from yatt_core.cluster.metering import BytesMeter, Interruptions, metered_get
from yatt_core.errors import InfrastructureError, StuckError
from yatt_core.run_actors.actor_registry import ActorRegistry
from yatt_core.run_actors.watchdog import describe, find_stuck, gather_stacks, log_stacks

log = logging.getLogger(__name__)


class ActorCalls:
    """deadline: seconds for each wait of the phase at hand."""

    def __init__(
        self,
        registry: ActorRegistry,
        run_folder: Path,
        meter: BytesMeter,
        interruptions: Interruptions,
        deadline: float,
    ) -> None:
        self.registry, self.interruptions, self.deadline = registry, interruptions, deadline
        self._folder, self._meter = run_folder, meter

    def get(self, references: list[Any], what: str, awaited: list[str], seconds: float | None = None) -> list[Any]:
        """The values; awaited: who is to give them, seconds: the deadline where it is another than the phase's."""
        try:
            timeout = self.deadline if seconds is None else seconds
            return metered_get(self._meter, references, timeout, what, self.interruptions)
        except StuckError as error:
            if error.__cause__ is None or isinstance(error.__cause__, ray.exceptions.GetTimeoutError):
                raise self.stuck(str(error), awaited) from error
            raise
        except InfrastructureError as error:
            self.notice(error.__cause__)
            raise
        except ray.exceptions.RayTaskError as error:
            # Not raised by us on purpose: a defect or a library's failure; the actor's log has its traceback.
            log.error("%s: %s", what, error)
            raise InfrastructureError(f"waiting for {what}: {str(error).strip().splitlines()[-1]}") from error

    def notice(self, error: BaseException | None) -> None:
        """Books the actor whose death an error of Ray's tells."""
        if isinstance(error, ray.exceptions.RayActorError) and error.actor_id:
            self.registry.lost(error.actor_id, " ".join(str(error).split()))

    def stuck(self, missed: str, awaited: list[str]) -> StuckError:
        """Names, logs and ends whoever holds up the others; returns the error that says so.

        Raises `FencedError` in a driver that was stopped, replaced and continued: its deadline is nobody's fault.
        """
        self.registry.require_current()
        reports = gather_stacks(self._folder, self.registry.names)
        stuck = find_stuck(self.registry.names, reports, awaited)
        for actor in stuck:
            log_stacks(actor, reports.get(actor))
            self.registry.end_stuck(actor, f"stuck: {describe(actor, reports.get(actor))}")
        return StuckError(f"{missed}; stuck and ended: {'; '.join(describe(a, reports.get(a)) for a in stuck)}")
