"""A session's devices while it waits for something that is away: given back after a while, taken again once it answers.

Consumes the name of what is away. Produces whether it answers, as far as the actors that stay, the store and the cluster
can tell, and a checkpoint of the last commit before the actors on the devices end. Controllers stay, for they hold no devices.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress

import ray

from flows.billing.session_billing import SessionBilling
from flows.driver.actors_start import ActorsStart
from flows.driver.checkpoints import CheckpointKeeper
from flows.driver.context import RunContext
from flows.driver.stopping import INTERRUPTIBLE
from yatt_core.errors import FencedError, YattError
from yatt_core.run_actors.run_actors import RunActors

log = logging.getLogger("yatt_core.flow")
SLICE_SECONDS = 0.5
LONGEST_LOOK_SECONDS = 15.0
"""Between two questions whether to stop during a look, and how long a look may take until it counts as no answer."""


class Standby:
    """The devices of one session, and what can be found out without them.

    returned_ms: when the session gave its devices back, in milliseconds since 1970; None while it holds them.
    """

    def __init__(self, start: ActorsStart, billing: SessionBilling) -> None:
        self._start = start
        self._billing = billing
        self._uncharged_since: int | None = None
        self._looks: dict[str, Future[bool | None]] = {}
        self.returned_ms: int | None = None

    def enter_branch(self, context: RunContext, actors: RunActors, checkpoints: CheckpointKeeper) -> None:
        """Switches to the actors and checkpoints of another branch."""
        self._context = context
        self._actors = actors
        self._checkpoints = checkpoints

    def answers(self, dependency: str, stop: Callable[[], bool]) -> bool | None:
        """Returns whether what is away answers again; None if only another attempt can tell.

        stop: returns True if the look is not needed any more.
        """
        look = self._looks.pop(dependency, None) or self._begin_look(dependency)
        left = LONGEST_LOOK_SECONDS
        while left > 0.0 and not stop():
            with suppress(NotYetError):
                return look.result(SLICE_SECONDS)
            left -= SLICE_SECONDS
        self._looks[dependency] = look  # the next look takes its answer
        return False

    def _begin_look(self, dependency: str) -> Future[bool | None]:
        """Looks in a thread of its own, which a process that ends does not wait for."""
        look: Future[bool | None] = Future()

        def see() -> None:
            try:
                look.set_result(self._see(dependency))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where the answer is taken
                look.set_exception(error)

        threading.Thread(target=see, name="look", daemon=True).start()
        return look

    def _see(self, dependency: str) -> bool | None:
        try:
            if (there := self._start.place_is_there(dependency)) is not None:
                return there
            if (there := self._context.store.answers(dependency)) is not None:
                return there
            return self._actors.answers(dependency)
        except FencedError:
            raise
        except (YattError, ray.exceptions.RayError) as error:
            log.info("whether %s is back is not known: %s", dependency, error)
            return None

    def give_back(self, phase: str) -> None:
        """Takes a checkpoint of the last commit if the trainer holds it, and gives the devices back.

        phase: the phase that cannot go on now.
        """
        # In the other phases the trainer is ahead of the last commit, or not ready. What it lacks is replayed.
        if phase in INTERRUPTIBLE and self._context.last_commit >= 0:
            try:
                self._take_checkpoint(self._context.last_commit)
            except FencedError:
                raise
            except YattError as error:
                self._context.observer.warned(f"no checkpoint before the devices are given back: {error}")
        self.give_back_unrecorded()
        self.charge_nothing()

    def give_back_unrecorded(self) -> None:
        """Gives the devices back while the ledger is away; `charge_nothing` has to follow once it answers."""
        self._context.observer.stage("giving the devices back while waiting")
        try:
            self._start.settle()
            self._actors.leave_devices()
        except FencedError:
            raise
        except (YattError, ray.exceptions.RayError) as error:
            log.warning("the actors on the devices cannot be reached, so they keep them for now: %s", error)
            return
        self._uncharged_since = self._billing.now()
        self.returned_ms = self._context.clock.time_ms()

    def charge_nothing(self) -> None:
        """Records that the run is not charged for devices since it gave them back."""
        if self._uncharged_since is not None:
            self._billing.devices_known({}, self._uncharged_since)
            self._uncharged_since = None

    def take(self) -> bool:
        """Has the session take devices again; returns False if it must get them from the queue."""
        if self.returned_ms is None:
            return True
        self.charge_nothing()
        if not self._context.ledger.waits.take_devices(self._context.fence):
            return False
        self.returned_ms = None
        return True

    def _take_checkpoint(self, iteration: int) -> None:
        if self._checkpoints.lacks(iteration):
            self._actors.rest()  # the trainer needs the devices' memory
            self._checkpoints.begin(iteration)
            self._checkpoints.wait()
