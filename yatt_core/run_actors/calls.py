"""Waiting for a run's actors: every wait has a deadline, and every failure names an actor.

Consumes Ray references and the names of the actors that answer them; produces values. A lost actor raises an
`InfrastructureError` that names it and is recorded in the registry; a missed deadline raises a `StuckError`
that names the stuck actors and their positions in the code.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from yatt_core.actors.presence import StackReport
from yatt_core.cluster.metering import BytesMeter, Interruptions, first_ready, metered_get
from yatt_core.errors import InfrastructureError, LostActorError, StuckError, YattError
from yatt_core.keys import WorkKey
from yatt_core.run_actors.actor_registry import TRAINER, ActorRegistry
from yatt_core.run_actors.hung_stacks import keep_stacks
from yatt_core.run_actors.watchdog import describe, find_stuck, gather_stacks, log_stacks, missing_actors

AFTERMATH_SECONDS = 5.0
"""How long the other calls may take after one has failed; those that take longer wait for something else."""
WORDS_SECONDS = 5.0
"""Pause between two questions about an actor's progress."""
log = logging.getLogger(__name__)
ACCUMULATE = "accumulate"
"""The method of a rank that is called without waiting for it."""


class ActorCalls:
    """Calls to the run's actors.

    deadline: seconds for each wait in the current phase, counted from the latest progress of the awaited actors.
    extended: called with the seconds by which a wait goes on, and what it waits for.
    dispatched: how often each shard of the latest iteration was given to a controller.
    """

    def __init__(
        self,
        registry: ActorRegistry,
        run_folder: Path,
        meter: BytesMeter,
        interruptions: Interruptions,
        deadline: float,
    ) -> None:
        self.registry = registry
        self.interruptions = interruptions
        self.deadline = deadline
        self.extended: Callable[[float], None] = lambda _: None
        self.dispatched: Counter[WorkKey] = Counter()
        self._folder = run_folder
        self._meter = meter

    def get(
        self,
        references: list[Any],
        what: str,
        awaited: list[str],
        seconds: float | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> list[Any]:
        """Returns the values of the references.

        awaited: the actors that provide them.
        seconds: the deadline if it differs from the phase's.
        tell: called with how far an actor has come, whenever it says so; None if nobody wants to know.
        """
        deadline = timeout = self.deadline if seconds is None else seconds
        while True:
            if tell is not None:
                timeout = self._tell_progress(references, awaited, timeout, tell)
            try:
                return self._get(references, timeout, what)
            except StuckError as error:
                if error.__cause__ is not None and not isinstance(error.__cause__, ray.exceptions.GetTimeoutError):
                    raise
                timeout = self.more_time(deadline, awaited, what)
                if not timeout:
                    raise self.stuck(str(error), awaited) from error

    def _tell_progress(
        self, references: list[Any], awaited: list[str], seconds: float, tell: Callable[[str], None]
    ) -> float:
        """Waits up to `seconds` for the first of the references and tells the actors' progress meanwhile.

        Returns the seconds that are left.
        """
        end = time.monotonic() + seconds
        told = ""
        left = seconds
        while left > 0.0 and first_ready(references, min(left, WORDS_SECONDS), self.interruptions) is None:
            with suppress(InfrastructureError):  # the wait itself tells what has failed
                for report in gather_stacks(self.registry.store, self._folder, awaited).values():
                    if report.words not in ("", told):
                        told = report.words
                        tell(told)
            left = end - time.monotonic()
        return max(0.0, left)

    def more_time(self, deadline: float, awaited: Collection[str], what: str) -> float:
        """Returns the seconds for which to go on waiting, because work on it has made progress; 0 if it has not.

        Trainers work for themselves. Anything else may be waiting for a rollout engine.
        """
        self.registry.require_current()
        trainers = set(self.registry.names_of(TRAINER))
        own = trainers.issuperset(awaited)
        working = [name for name in self.registry.names if (name in trainers) == own]
        reports = gather_stacks(self.registry.store, self._folder, working).values()
        progress = [report.progressed for report in reports if report.progressed is not None]
        left = deadline - min(progress, default=deadline)
        if left <= 0.0:
            return 0.0
        log.info("%s: %g s are over, but work goes on; %.3g s more", what, deadline, left)
        self.extended(left)
        return left

    def _get(self, references: list[Any], timeout: float, what: str) -> list[Any]:
        try:
            return metered_get(
                meter=self._meter,
                references=references,
                timeout=timeout,
                waiting_for=what,
                interruptions=self.interruptions,
            )
        except StuckError:
            raise
        except InfrastructureError as error:
            self.notice(error.__cause__)
            raise
        except ray.exceptions.RayTaskError as error:
            # An unexpected exception: a defect or a library's failure; the actor's log has its traceback.
            log.error("%s: %s", what, error)
            raise InfrastructureError(f"waiting for {what}: {str(error).strip().splitlines()[-1]}") from error

    def notice(self, error: BaseException | None) -> None:
        """Records the actor whose death a Ray error reports."""
        if isinstance(error, ray.exceptions.RayActorError) and error.actor_id:
            self.registry.lost(error.actor_id, " ".join(str(error).split()))

    def get_from_group(self, asked: Mapping[Any, str], what: str, seconds: float | None = None) -> list[Any]:
        """Returns what actors that work together answer, as `get` does.

        asked: the calls, with the names of the actors that answer them.

        Raises `LostActorError` if an actor was lost, even if another one, which had waited for it, failed first.
        """
        try:
            return self.get(list(asked), what, list(asked.values()), seconds)
        except (StuckError, LostActorError):
            raise
        except InfrastructureError as error:
            if lost := self.find_lost(asked):
                raise LostActorError(f"lost while {what}: {', '.join(lost)}; {error}") from error
            raise

    def find_lost(self, references: Mapping[Any, str]) -> list[str]:
        """Records the actors that were lost, once a call to one of several has failed; returns their names.

        references: all of these calls, with the names of the actors that answer them.
        """
        with self.interruptions.shielded():
            done, _ = ray.wait(list(references), num_returns=len(references), timeout=AFTERMATH_SECONDS)
        lost = []
        for reference in done:
            try:
                metered_get(
                    meter=self._meter,
                    references=[reference],
                    timeout=AFTERMATH_SECONDS,
                    waiting_for=references[reference],
                    interruptions=self.interruptions,
                )
            except (YattError, ray.exceptions.RayTaskError) as error:
                cause = error.__cause__
                self.notice(cause)
                if isinstance(cause, ray.exceptions.RayActorError):
                    lost.append(references[reference])
        return sorted(lost)

    def idle(self, names: Collection[str]) -> set[str]:
        """Returns which of some actors say that they are doing nothing."""
        reports = gather_stacks(self.registry.store, self._folder, names)
        return {name for name, report in reports.items() if not report.method}

    def _but_accumulating(self, reports: Mapping[str, StackReport]) -> list[str]:
        """Returns all actors but the ranks that learn from what is sealed while engines generate: nobody waits for them."""
        trainers = self.registry.names_of(TRAINER)
        beside = {name for name in trainers if name in reports and reports[name].method == ACCUMULATE}
        return [name for name in self.registry.names if name not in beside]

    def stuck(self, missed: str, awaited: list[str]) -> StuckError:
        """Names, logs and ends the actors that block the others, once their stacks are kept; returns the error.

        Raises `FencedError` in a driver that was suspended, replaced and resumed: no actor is to blame for the
        deadline that it missed.
        """
        self.registry.require_current()
        reports = gather_stacks(self.registry.store, self._folder, self.registry.names)
        trainers = self.registry.names_of(TRAINER)
        # While the trainer learns, engines may be at work on a later iteration; nothing of the trainer's waits for them.
        suspects = trainers if awaited and set(trainers).issuperset(awaited) else self._but_accumulating(reports)
        stuck = find_stuck(suspects, reports, awaited)
        missing = missing_actors(reports)
        kept = keep_stacks(self._folder, self.registry.actor_ids(stuck), self.interruptions)
        lines = [describe(actor, reports.get(actor), missing.get(actor, ())) for actor in stuck]
        for actor, line in zip(stuck, lines, strict=True):
            log_stacks(actor, reports.get(actor))
            self.registry.end_stuck(actor, f"stuck: {line}")
        stacks = f"; their stacks: {', '.join(map(str, kept))} in the run's folder" if kept else ""
        return StuckError(f"{missed}; stuck and ended: {'; '.join(lines)}{stacks}")
