"""Which sealed shards a recovery needs, which of them are damaged, and under which weights these are made again.

Consumes the last commit, the recorded rounds and the files. Produces the damaged experience by branch and iteration. With slices
an update learns from groups that earlier iterations sealed, and a shard is made again from what its groups were sealed in before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flows.driver.context import RunContext
from flows.phases.experience import has_damage, whole_shards
from flows.phases.sealed_groups import places_of, rows_at, sealed_before
from flows.phases.waves import planned_waves
from flows.run.control_state import ControlState
from yatt_core.protocols.receipts import ShardPlace

BranchIteration = tuple[int, int]


@dataclass(slots=True)
class Damage:
    """The damaged experience of an iteration.

    version: of the weights that it was sampled under.
    only: the shards that are needed; None: all that are damaged.
    """

    version: int
    only: set[ShardPlace] | None = None

    def add(self, place: ShardPlace) -> None:
        """Adds a shard to those that are needed."""
        if self.only is not None:
            self.only.add(place)


def lagging_damage(context: RunContext, state: ControlState, restored: int) -> dict[BranchIteration, Damage]:
    """Returns damaged experience that must be made again while the trainer passes the weights that it was sampled under.

    That is what was collected ahead, and of iterations after a checkpoint what was not sampled under the weights right before its
    update; with slices all that updates after the checkpoint, and the groups in flight, need.

    restored: the checkpoint's iteration.
    """
    found = [(context.branch, entry.iteration, entry.version) for entry in state.in_flight]
    for iteration in range(restored + 1, state.iteration + 1):
        commit = context.ledger.commits.at(context.run, iteration)
        version = -1 if commit is None else ControlState.from_json(commit.state).sampled_under
        if commit is not None and 0 <= version < iteration - 1:
            found.append((commit.branch, iteration, version))
    whole = {
        (branch, iteration): Damage(version)
        for branch, iteration, version in found
        if has_damage(context, branch, iteration)
    }
    return sliced_damage(context, state, restored) | whole


def sliced_damage(context: RunContext, state: ControlState, restored: int) -> dict[BranchIteration, Damage]:
    """Returns the damaged shards that updates after a checkpoint, or the groups in flight, need: none without slices.

    For a damaged shard to be made again, what its groups were sealed in before must be whole as well.
    """
    damaged: dict[BranchIteration, Damage] = {}
    wanted = {(context.branch, place) for place in places_of(state.carried)}
    for iteration in range(restored + 1, state.iteration + 1):
        commit = context.ledger.commits.at(context.run, iteration)
        if commit is not None:
            wanted |= {(commit.branch, place) for place in _learnt_at(context, commit.branch, iteration)}
    for entry in state.in_flight:
        wanted |= {(context.branch, place) for place in _needs(context, context.branch, entry.iteration)}
    seen: set[tuple[int, ShardPlace]] = set()
    while new := wanted - seen:
        seen |= new
        for branch, place in sorted(_damaged(context, new)):
            version = _sampled_under(context, state, place.iteration)
            damaged.setdefault((branch, place.iteration), Damage(version, set())).add(place)
            wave = planned_waves(context, branch, place.iteration)[place.wave]
            wanted |= {(branch, before) for before in sealed_before(wave, place.shard)}
    return damaged


def _learnt_at(context: RunContext, branch: int, iteration: int) -> set[ShardPlace]:
    waves = planned_waves(context, branch, iteration)
    drawn = waves[-1].drawn if waves else None
    return set() if drawn is None else places_of(drawn.learnt or ())


def _needs(context: RunContext, branch: int, iteration: int) -> set[ShardPlace]:
    """Returns what an iteration that was collected ahead may have to be made again from."""
    before = [
        sealed_before(wave, shard)
        for wave in planned_waves(context, branch, iteration)
        for shard in range(wave.plan.shards)
    ]
    return _learnt_at(context, branch, iteration).union(*before)


def _damaged(context: RunContext, places: Iterable[tuple[int, ShardPlace]]) -> list[tuple[int, ShardPlace]]:
    found = []
    by_branch: dict[int, set[ShardPlace]] = {}
    for branch, place in places:
        by_branch.setdefault(branch, set()).add(place)
    for branch, wanted in by_branch.items():
        rows = rows_at(context, branch, wanted)
        whole = whole_shards(context, list(rows.values()))
        found += [(branch, place) for place, row in rows.items() if row not in whole]
    return found


def _sampled_under(context: RunContext, state: ControlState, iteration: int) -> int:
    """Returns the version of the weights that an iteration was sampled under."""
    for entry in state.in_flight:
        if entry.iteration == iteration:
            return entry.version
    commit = context.ledger.commits.at(context.run, iteration)
    return iteration - 1 if commit is None else ControlState.from_json(commit.state).sampled_under
