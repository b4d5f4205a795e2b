"""Streamed learning (`asynchrony.streamed`): sealed shards go to the trainer while the rest of their iteration is generated.

Consumes the sealed shards of a wave and the control state of the last commit. The trainer gets each shard once it and all
before it are sealed, so that their order is that of their numbers, and adds up their gradients. Nothing waits for that here:
`prepare` does, and does again whatever is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from db.write.records import ShardRow
from flows.driver.session import DriverSession
from flows.phases.batches import batch_task
from flows.phases.sealed_groups import SealedBatch, references_of
from flows.run.control_state import ControlState
from yatt_core.experience.dynamic_sampling import SamplingRule, WaveGroups
from yatt_core.protocols.receipts import Admission, GroupFacts

ACCUMULATE = "accumulate"


class StreamedShard(Protocol):
    """A sealed shard: its row in the ledger, its prompts' ordinals, and facts about their groups."""

    @property
    def row(self) -> ShardRow: ...
    @property
    def ordinals(self) -> tuple[int, ...]: ...
    @property
    def facts(self) -> GroupFacts: ...


@dataclass(slots=True)
class ShardStream:
    """The shards of an iteration on their way to the trainer.

    before: the control state of the last commit.
    sent: number of shards that the trainer has been asked to learn from.
    """

    session: DriverSession
    iteration: int
    before: ControlState
    sent: int = 0

    def offer(self, sealed: Mapping[int, StreamedShard]) -> None:
        """Has the trainer learn from those shards that are new and without a gap before them. sealed: by number."""
        count = self.sent
        while count in sealed:
            count += 1
        if count == self.sent:
            return
        self.sent = count
        context = self.session.context
        shards = [sealed[number] for number in range(count)]
        admission = admission_so_far(SamplingRule.of(context.spec), shards)
        batch = SealedBatch(references_of(shard.row for shard in shards), admission)
        task = batch_task(
            context=context, branch=context.branch, iteration=self.iteration, name=ACCUMULATE, batch=batch
        )
        inputs = replace(task, reward_moments=self.before.reward_moments, coefficients=self.before.coefficients)
        self.session.actors.accumulate(inputs)


def admission_so_far(rule: SamplingRule, shards: Sequence[StreamedShard]) -> Admission:
    """Returns what the first wave of an iteration will admit of its first shards: each group is judged by itself.

    Further waves, in place of samples without a score, do not change that: `prepare` has the trainer learn from their shards.

    rule: one that neither filters nor over-dispatches.
    """
    groups = WaveGroups.gather((shard.ordinals, shard.facts) for shard in shards)
    usable = groups.usable(rule)
    return Admission(tuple(groups.ordinals[usable].tolist()), tuple(groups.ordinals[~usable].tolist()), rule.keep)
