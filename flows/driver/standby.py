"""A session's devices while it waits for something that is away: given back after a while, taken again once it answers.

Consumes the name of what is away. Produces whether it answers, as far as the actors that stay, the store and the cluster
can tell, and a checkpoint of the last commit before the actors on the devices end. Controllers stay, for they hold no devices.
"""

from __future__ import annotations

import logging

import ray

from flows.billing.session_billing import SessionBilling
from flows.driver.actors_start import ActorsStart
from flows.driver.checkpoints import CheckpointKeeper
from flows.driver.context import RunContext
from flows.driver.stopping import INTERRUPTIBLE
from yatt_core.errors import FencedError, YattError
from yatt_core.run_actors.run_actors import RunActors

log = logging.getLogger("yatt_core.flow")


class Standby:
    """The devices of one session, and what can be found out without them.

    gave_back: whether the session holds no devices, because it gave them back.
    committed: the last iteration that the session knows to be committed; -1 before the first.
    """

    def __init__(self, start: ActorsStart, billing: SessionBilling) -> None:
        self._start, self._billing = start, billing
        self._uncharged_since: int | None = None
        self.gave_back = False
        self.committed = -1

    def enter_branch(self, context: RunContext, actors: RunActors, checkpoints: CheckpointKeeper) -> None:
        """Switches to the actors and checkpoints of another branch."""
        self._context, self._actors, self._checkpoints = context, actors, checkpoints

    def answers(self, dependency: str) -> bool | None:
        """Returns whether what is away answers again; None if only another attempt can tell."""
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

        phase: the phase that cannot go on.
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
        self._charge_nothing()

    def give_back_unrecorded(self) -> None:
        """Gives the devices back while the ledger is away; `took` records that the run was not charged from now on."""
        self._context.observer.stage("giving the devices back while waiting")
        self._uncharged_since = self._billing.now()
        try:
            self._actors.leave_devices()
        except FencedError:
            raise
        except (YattError, ray.exceptions.RayError) as error:
            log.warning("the actors on the devices cannot be reached, so they end by themselves: %s", error)
        self.gave_back = True

    def took(self) -> None:
        """Notes that the session takes devices again."""
        self._charge_nothing()
        self.gave_back = False

    def _take_checkpoint(self, iteration: int) -> None:
        if self._checkpoints.lacks(iteration):
            self._checkpoints.begin(iteration)
            self._checkpoints.wait()

    def _charge_nothing(self) -> None:
        if self._uncharged_since is not None:
            self._billing.devices_known({}, self._uncharged_since)
            self._uncharged_since = None
