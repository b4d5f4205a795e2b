"""An iteration's turn: the placement under which it is collected, and what was collected.

Consumed by the phases, by the commit, and by the lookahead, which holds several turns at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flows.phases.experience import Experience
from flows.phases.gathering import Gathering
from flows.phases.placement import CollectedWork, Placement
from flows.phases.sealed_groups import SealedBatch
from flows.run.control_state import ControlState
from yatt_core.placement.seen import Usage


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of `collect`.

    version: of the weights that the iteration was sampled under.
    work: the record of the work done by the devices; None if no judge runs on a device.
    usage: the work of each rollout instance.
    gauges: metrics of class timing.
    """

    experience: Experience
    version: int
    work: CollectedWork | None
    usage: Sequence[Usage]
    gauges: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Turn:
    """An iteration that is collected, and the placement under which it was."""

    iteration: int
    placement: Placement
    collected: Collected

    @property
    def batch(self) -> SealedBatch:
        """What the ranks learn from."""
        return self.collected.experience.batch

    def after(self, state: ControlState) -> ControlState:
        """Returns the state from which the next iteration is collected."""
        experience = self.collected.experience
        return replace(
            state,
            cursor=experience.cursor,
            sampling_average=experience.sampling.average_now,
            placement=self.placement.decision.decision["state"],
            carried=() if experience.sliced is None else experience.sliced.slicing.carried,
        )


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """An iteration that controllers are at work on while the trainer learns."""

    iteration: int
    placement: Placement
    gathering: Gathering
