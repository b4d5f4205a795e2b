"""The Ray actor that wraps a `DispatchQueue`: one for all engines of a run. It handles sizes and names, no payload.

Consumes `acquire` calls of controllers; each waits until its batch is granted an instance, for example after
a `release`. A grant includes the instance's handle, so controllers never hold a handle to an instance that
was replaced. Within an iteration, a placement's runtime policy acts here: at the start of a wave, every
control period, after the last rollout and after role switches.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from yatt_core.actors.presence import Presence
from yatt_core.dispatch.pool import dispatch_limits, instance_roles, instance_speeds
from yatt_core.dispatch.queue import DispatchQueue, Ticket
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.errors import CutError, InfrastructureError, LostActorError
from yatt_core.installed import failure_text
from yatt_core.logs import actor_logs
from yatt_core.placement.actions import (
    ROLE_NAMES,
    Action,
    action_line,
    ahead_of_dispatch,
    checked_action,
    serves_line,
    trainer_line,
)
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import RuntimePolicy
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.rollout import VirtualRollout

CONCURRENT_CALLS = 100_000
"""Maximum number of concurrent calls: each waiting batch is a pending call, and no release may queue behind them."""

STANDSTILL_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """The outcome of an iteration's placement. Both durations are in the engines' virtual seconds.

    collect_s: time from the iteration's start to the last judgement.
    judging_s: judging time after the last rollout, summed over the waves.
    actions: the runtime policy's actions and the times at which instances began to serve a role, as log
        lines.
    defect: the runtime policy's error, after which it was no longer called; empty if there was none.
    """

    collect_s: float
    judging_s: float
    actions: list[dict[str, Any]]
    defect: str = ""


class Dispatcher:
    """An asynchronous actor. All calls run on one event loop, so the queue needs no lock."""

    def __init__(self, spec_json: str, run_folder: str, index: int, term: int) -> None:
        spec = RunSpec.model_validate_json(spec_json)
        name = f"dispatcher-{index}"
        actor_logs(Path(run_folder), name, term)
        self._presence = Presence(name, term, spec.recovery.grace_seconds)
        speeds = instance_speeds(spec)
        self._queue = DispatchQueue(speeds, dispatch_limits(spec), instance_roles(spec))
        self._engines: list[Any] = [None] * len(speeds)
        self._granted: dict[int, asyncio.Future[int]] = {}
        # By owner, what it held when the rest of its batches was cut, by instance; some of it may have ended since.
        self._unneeded: dict[str, dict[int, list[int]]] = {}
        engine = spec.rollout.engine
        self._clock = ScaledClock(engine.clock_factor if isinstance(engine, VirtualRollout) else 1.0)
        self._started = self._drained_at = self._judged_at = self._judging = 0.0
        self._period = self._clock.real_seconds(spec.placement.control_seconds)
        self._runtime_policy: RuntimePolicy = Hold()
        self._actions: list[dict[str, Any]] = []
        self._defect = ""
        self._was_drained = True
        self._watched = False
        self._background: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None

    async def engage(self, term: int, engines: Sequence[Any]) -> None:
        """Takes the handles of the pool's live engines, in order, and drops batches granted to replaced engines."""
        self._presence.fence.check(term)
        for index, engine in enumerate(engines):
            known = self._engines[index]
            if known is None or known._actor_id != engine._actor_id or self._queue.is_lost(index):
                self._engines[index] = engine
                self._queue.renew(index)
        self._advance()
        if not self._watched:
            self._watched = True
            self._spawn(self._watch())

    # -- batches ------------------------------------------------------------------------------------------------------

    async def acquire(self, term: int, owner: str, size: int, role: str, at_the_head: bool) -> tuple[int, int, Any]:
        """Waits for an instance with the role; returns the grant's number, the instance's index and its handle.

        at_the_head: put this batch ahead of the waiting ones whose work has not begun, behind others of its kind.

        Raises `InfrastructureError` if no instance is left.
        """
        self._presence.fence.check(term)
        ticket = self._queue.submit(owner, size, role, at_the_head)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._granted[ticket.number] = future
        self._advance()
        index = await future
        return ticket.number, index, self._engines[index]

    async def progress(self, number: int, ended: int) -> None:
        """Records that `ended` more sequences of a granted batch have finished."""
        self._queue.progress(number, ended)
        self._advance()

    async def release(self, number: int) -> None:
        """Returns an instance's slot."""
        self._queue.release(number)
        self._advance()

    async def lose(self, number: int) -> None:
        """Records that the engine of a grant has died."""
        self._queue.lose(number)
        self._advance()

    async def forget(self, owner: str) -> None:
        """Drops everything that an owner waits for or holds, because it has died or given up."""
        self._drop(owner, InfrastructureError(f"{owner} gave up its batches"))
        self._advance()

    async def cut(self, term: int, owners: Sequence[str]) -> None:
        """Drops the waiting batches of owners whose results are no longer needed.

        Granted batches run to completion, or until the owner, which hears of it only if it waits for one, gives them up.
        """
        self._presence.fence.check(term)
        for owner in owners:
            self._unneeded[owner] = self._queue.granted(owner)
            self._refuse(
                self._queue.forget(owner), CutError(f"the batches that {owner} waits for are no longer needed")
            )
        self._advance()

    async def retain(self, owners: Sequence[str]) -> None:
        """Keeps only these owners: drops everything that other owners wait for or hold, since they are gone."""
        for owner in (self._queue.owners() | self._unneeded.keys()) - set(owners):
            self._drop(owner, InfrastructureError(f"{owner} is gone"))
        self._advance()

    # -- placement ----------------------------------------------------------------------------------------------------

    async def place(self, term: int, roles: str, runtime_policy: RuntimePolicy, starting: bool) -> None:
        """Assigns roles to the devices and installs the runtime policy.

        starting: whether these roles begin an iteration.
        """
        self._presence.fence.check(term)
        self._stop_ticking()
        self._runtime_policy = runtime_policy
        self._was_drained = True
        if starting:
            self._actions = []
            self._judging = 0.0
            self._defect = ""
            self._started = self._judged_at = self._drained_at = self._clock.now()
        self._queue.assign(roles, starting)
        self._carry_on(starting)
        self._advance()

    async def keep(self, term: int, instances: Sequence[int]) -> None:
        """Keeps these instances free of new work, and no others; what they hold goes on elsewhere if it can."""
        self._presence.fence.check(term)
        before = {instance.index for instance in self._queue.instances if instance.kept}
        for index, count in self._queue.keep(instances):
            self._spawn(self._evict(index, count))
        for index in sorted(before ^ set(instances)):
            self._log(trainer_line(index, index not in before))
        self._act(Moment.SWITCHED)
        if not instances and self._was_drained and self._queue.unjudged:
            # Those that join now have missed that the wave's last rollout has finished.
            self._act(Moment.DRAINED)

    async def begin_wave(self, term: int, wave: str, samples: int) -> None:
        """Starts a wave of `samples` samples to be rolled out and judged."""
        self._presence.fence.check(term)
        self._stop_ticking()
        self._queue.begin_wave(wave, samples)
        self._was_drained = not samples
        self._act(Moment.WAVE)
        self._ticking = self._spawn(self._tick())

    async def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Records the total number of samples of a part of a wave that have been rolled out and judged."""
        open_before = self._queue.unjudged
        self._queue.note(wave, part, rolled, judged)
        if open_before and not self._queue.unjudged:
            self._judged_at = self._clock.now()
            # A wave that ends with its last rollout, such as one whose shards were all adopted, adds no judging time.
            self._judging += self._judged_at - self._drained_at if self._was_drained else 0.0
        self._advance()

    async def report(self) -> PlacementReport:
        """Reports the outcome of the iteration's placement so far."""
        return PlacementReport(self._judged_at - self._started, self._judging, list(self._actions), self._defect)

    async def _tick(self) -> None:
        """Acts once per control period from the wave's start until its end. Missed periods are skipped."""
        started = time.monotonic()
        ticks = 0
        while True:
            passed = (time.monotonic() - started) / self._period
            ticks = max(ticks + 1, math.ceil(passed))
            await asyncio.sleep((ticks - passed) * self._period)
            if not self._queue.unjudged:
                return
            for index, count in self._queue.lingering():
                self._spawn(self._evict(index, count))
            self._act(Moment.TICK)

    def _stop_ticking(self) -> None:
        """Stops the control periods of the previous wave, which may be unfinished or may be the same wave, retried."""
        if self._ticking is not None:
            self._ticking.cancel()

    async def _watch(self) -> None:
        """Ends a standstill that no runtime policy has ended for a while."""
        stood_still = False
        while True:
            await asyncio.sleep(STANDSTILL_SECONDS)
            actions = self._queue.unserved()
            if actions and stood_still:
                log.warning("no instance serves the waiting batches; %d instances change their roles", len(actions))
                self._apply(actions)
                self._advance(acts=False)
            stood_still = bool(actions)

    def _act(self, moment: Moment) -> None:
        """Lets the runtime policy act.

        A policy that raises or returns an impossible action is not called again in this iteration.
        """
        self._queue.now = self._seconds()
        try:
            asked = self._runtime_policy.act(moment, self._queue)
            self._carry_out(moment, [checked_action(action, len(self._queue.instances)) for action in asked])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of a user-supplied policy is that policy's failure
            self._defect = failure_text(error)
            self._runtime_policy = Hold()
            log.error("the placement's runtime policy failed; roles stay unchanged: %s", self._defect)
        self._advance(acts=False)

    def _carry_out(self, moment: Moment, actions: Sequence[Action]) -> None:
        if moment is Moment.SWITCHED:
            ahead, actions = ahead_of_dispatch(actions)
            self._apply(ahead)
            self._advance(acts=False)
        self._apply(actions)

    def _apply(self, actions: Iterable[Action]) -> None:
        for action in actions:
            leaving = self._queue.apply(action)
            self._log(action_line(action))
            if leaving:
                self._spawn(self._evict(action.instance, leaving))

    def _log(self, line: dict[str, Any]) -> None:
        """Records an event of an instance's role, with its time."""
        self._actions.append({"t": round(self._seconds(), 3), **line})

    def _seconds(self) -> float:
        """Returns the seconds since the iteration's start."""
        return self._clock.now() - self._started

    async def _evict(self, index: int, count: int) -> None:
        """Makes an instance return its newest sequences; their requesters submit them again."""
        engine = self._engines[index]
        if not hasattr(engine, "evict"):  # an actor whose engine cannot has no such method
            return
        try:
            await engine.evict.remote(self._presence.fence.term, count)
        except ray.exceptions.RayError as error:
            log.warning("rollout-%d returned no sequences: %s", index, error)

    async def _give_up(self, index: int, numbers: Sequence[int]) -> None:
        """Makes an instance drop the calls of granted batches that nobody waits for, so that it hands none of them over."""
        engine = self._engines[index]
        if not hasattr(engine, "give_up"):
            return
        try:
            await engine.give_up.remote(self._presence.fence.term, numbers)
        except ray.exceptions.RayError as error:
            log.warning("rollout-%d goes on with batches that nobody waits for: %s", index, error)

    async def _switch(self, index: int, role: str, starting: bool) -> None:
        """Makes an instance switch roles. The result for an instance that was replaced meanwhile is ignored."""
        log.info("rollout-%d is switching to %s", index, ROLE_NAMES[role])
        engine = self._engines[index]
        defect = None
        began = self._clock.now()
        try:
            await engine.switch.remote(self._presence.fence.term, role, starting)
        except ray.exceptions.RayError as error:
            defect = error
        if engine is not self._engines[index]:
            return
        if defect is None:
            log.info("rollout-%d has switched to %s", index, ROLE_NAMES[role])
            self._queue.switched(index)
            self._log(serves_line(index, role, self._clock.now() - began))
        else:
            # Callers that hold or sync the instance notice its loss; here it is merely given no more batches.
            log.warning("rollout-%d failed to switch roles: %s", index, defect)
            self._queue.fail(index)
        self._act(Moment.SWITCHED)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # -- internals ----------------------------------------------------------------------------------------------------

    def _advance(self, acts: bool = True) -> None:
        """Grants the batches that can be granted.

        acts: whether the runtime policy may act as well.
        """
        if acts and not self._was_drained and self._queue.drained:
            self._drained_at = self._clock.now()
            self._was_drained = True
            self._act(Moment.DRAINED)
            return
        self._carry_on(starting=False)
        for ticket, index in self._queue.grant():
            self._granted.pop(ticket.number).set_result(index)
        self._refuse(self._queue.stranded(), LostActorError("no rollout engine is left"))

    def _carry_on(self, starting: bool) -> None:
        for index, role in self._queue.switches():
            self._spawn(self._switch(index, role, starting))

    def _drop(self, owner: str, error: InfrastructureError) -> None:
        """Drops what an owner waits for, with an error, and what it holds."""
        unneeded = self._unneeded.pop(owner, {})
        for index, numbers in [*unneeded.items(), *self._queue.granted(owner).items()]:
            self._spawn(self._give_up(index, numbers))
        self._refuse(self._queue.forget(owner), error)

    def _refuse(self, tickets: Sequence[Ticket], error: InfrastructureError) -> None:
        for ticket in tickets:
            self._granted.pop(ticket.number).set_exception(error)
