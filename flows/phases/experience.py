"""An iteration's sealed shards: what they hold, how controllers are asked to make them, and how damaged ones are rebuilt.

A recorded shard is kept as long as its files match their digests. A damaged shard is rebuilt alone, from the same prompts,
seeds and weights, and must reproduce the recorded digests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import asdict, dataclass

from db.write.records import ShardRow
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.files.storage import whole_shards as whole_on_any_tier
from flows.phases.metrics import add_sums
from flows.phases.sealed_groups import (
    SealedBatch,
    SlicedExperience,
    learnt_batch,
    references_of,
    slice_tasks,
    split_shards,
)
from flows.phases.waves import PlannedWave, planned_waves
from yatt_core.digests import experience_digest_of_iteration
from yatt_core.errors import InfrastructureError
from yatt_core.experience.dynamic_sampling import Sampling, admission_of
from yatt_core.experience.shard_log import damaged_shards
from yatt_core.experience.telemetry import SCORES, write_telemetry
from yatt_core.keys import WorkKey, wave_name
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.receipts import PromptRef, ShardPlace, ShardReceipt, ShardTask
from yatt_core.run_actors.wave_collection import WaveCollection
from yatt_core.spent_time import DATA, spent
from yatt_core.tracing.calls import call_term


@dataclass(frozen=True, slots=True)
class Experience:
    """An iteration's sealed shards in canonical order.

    sampling: the final state of dynamic sampling.
    cursor: the position after the iteration's prompts, with what the curriculum has learned from them.
    peak_bytes: maximum bytes that any controller had in flight.
    sliced: with slices, what the iteration learns from and what goes on; None without.
    """

    shards: tuple[ShardRow, ...]
    sampling: Sampling
    cursor: Cursor
    peak_bytes: float
    sliced: SlicedExperience | None = None

    @property
    def batch(self) -> SealedBatch:
        """The part of the experience that the trainer needs."""
        if self.sliced is not None:
            return self.sliced.batch
        return SealedBatch(references_of(self.shards), admission_of(self.sampling.outcomes))

    @property
    def sums(self) -> dict[str, float]:
        """Additive statistics of all samples; with slices, of those that are learnt from."""
        if self.sliced is not None:
            return add_sums([facts.sums for facts in self.sliced.facts])
        return add_sums([row.sums for row in self.shards])

    @property
    def digest(self) -> str:
        """The iteration's experience digest, over all samples, admitted or not."""
        return experience_digest_of_iteration(b"".join(row.group_digests for row in self.shards))


def cursor_after(context: RunContext, iteration: int, cursor: Cursor) -> Cursor:
    """Returns the cursor after all prompts that an uncommitted iteration has drawn.

    cursor: the position before the iteration.
    """
    if not context.spec.has.controllers:
        return draw(context.spec.data, context.spec.seed, cursor, context.spec.data.prompts_per_iteration)[1]
    waves = planned_waves(context, context.branch, iteration)
    return prompts_of(context, waves[-1])[1] if waves else cursor


def is_gathered(context: RunContext, iteration: int) -> bool:
    """Returns True if every wave of the current branch's iteration is settled and all its shards are intact.

    A run without controllers has no waves: it gathers nothing here.
    """
    if not context.spec.has.controllers:
        return True
    waves = planned_waves(context, context.branch, iteration)
    outcomes = [wave.outcome for wave in waves if wave.outcome]
    if not outcomes or len(outcomes) < len(waves) or outcomes[-1].padding is None:
        return False
    rows = context.ledger.records.shards(context.run, context.branch, iteration)
    return len(whole_shards(context, rows)) == sum(outcome.shards for outcome in outcomes)


# -- committed iterations ---------------------------------------------------------------------------------------------


def sealed_batch(session: DriverSession, branch: int, iteration: int, version: int) -> SealedBatch:
    """Returns a committed iteration's experience for replay, with damaged shards rebuilt.

    version: of the weights that the iteration was sampled under. The trainer must hold them if a shard is damaged.
    """
    context = session.context
    waves = planned_waves(context, branch, iteration)
    if waves and waves[-1].drawn is not None:  # recovery has rebuilt what was damaged, of whatever iteration
        return learnt_batch(context, branch, waves[-1].drawn.learnt or ())
    rebuild_shards(session, branch, iteration, version)
    rows = context.ledger.records.shards(context.run, branch, iteration)
    outcomes = [wave.outcome for wave in waves if wave.outcome]
    # If no waves are recorded, the update learned from all groups.
    admission = admission_of(outcomes) if outcomes else None
    return SealedBatch(references_of(rows), admission)


def rebuild_shards(
    session: DriverSession, branch: int, iteration: int, version: int, only: Collection[ShardPlace] | None = None
) -> None:
    """Has the controllers make the damaged ones of an iteration's recorded shards again, under the weights as then.

    version: of these weights, which the trainer must hold if a shard is damaged.
    only: the shards that are needed; None: all of them.
    """
    context = session.context
    recorded = context.ledger.records.shards(context.run, branch, iteration)
    if only is not None:
        recorded = [row for row in recorded if ShardPlace(iteration, row.wave, row.shard) in only]
    whole = whole_shards(context, recorded)
    damaged = [(row.wave, row.shard) for row in recorded if row not in whole]
    if not damaged:
        return
    waves = planned_waves(context, branch, iteration)
    session.actors.sync(version)
    for number, places in itertools.groupby(damaged, key=lambda place: place[0]):
        if number >= len(waves):
            raise InfrastructureError(f"run {context.run}, iteration {iteration}: wave {number} is not in the ledger")
        prompts = split_shards(prompts_of(context, waves[number])[0], waves[number].plan.shards)
        making = Making.begin(
            session=session,
            branch=branch,
            iteration=iteration,
            wave=waves[number],
            prompts=prompts,
            shards=[shard for _, shard in places],
            version=version,
        )
        for receipt in making.receipts():
            record(context, row_of(receipt), replaces=True)


# -- both -------------------------------------------------------------------------------------------------------------


@spent(DATA, "check shards")
def whole_shards(context: RunContext, rows: Sequence[ShardRow]) -> list[ShardRow]:
    """Returns the shards whose files match their digests, on either storage tier; warns about every other one."""
    whole = whole_on_any_tier(context.store, context.folder, rows)
    for row in rows:
        if row not in whole:
            context.observer.warned(f"{row.folder} is damaged; rebuilding this shard")
    return whole


def has_damage(context: RunContext, branch: int, iteration: int) -> bool:
    """Returns True if a recorded shard of the iteration is missing or damaged."""
    rows = context.ledger.records.shards(context.run, branch, iteration)
    return len(whole_shards(context, rows)) < len(rows)


def has_damaged_copy(context: RunContext, branch: int, iteration: int) -> bool:
    """Returns True if the local copy of a recorded shard is damaged, whether or not the durable tier has another one.

    A missing copy is none: it may be on another node's disk alone.
    """
    rows = context.ledger.records.shards(context.run, branch, iteration)
    return bool(damaged_shards(context.folder, [row for row in rows if (context.folder / row.folder).exists()]))


def prompts_of(context: RunContext, wave: PlannedWave) -> tuple[tuple[PromptRef, ...], Cursor]:
    """Returns the prompts that a wave draws, and the cursor after them; with slices, among them those that go on."""
    drawn, cursor = draw(context.spec.data, context.spec.seed, wave.cursor, wave.plan.prompts)
    return drawn if wave.round is None else tuple(group.ref for group in wave.round.groups), cursor


@dataclass(frozen=True, slots=True)
class Making:
    """Shards of a wave that the controllers make.

    collection: None if there is nothing to make.
    """

    context: RunContext
    branch: int
    iteration: int
    wave: int
    term: int
    collection: WaveCollection | None

    @classmethod
    def begin(
        cls,
        session: DriverSession,
        branch: int,
        iteration: int,
        wave: PlannedWave,
        prompts: Sequence[tuple[PromptRef, ...]],
        shards: Sequence[int],
        version: int,
    ) -> Making:
        """Has the controllers begin.

        version: of the weights to sample under, which the engines must hold.
        """
        context = session.context
        number = wave.plan.wave
        term = call_term(context.fence.term)
        keys = {shard: WorkKey(context.run, branch, iteration, "collect", wave=number, shard=shard) for shard in shards}
        slices = slice_tasks(context, branch, wave) if keys else {}
        tasks = [
            ShardTask(key, term, prompts[shard], version, slices=slices.get(shard, ())) for shard, key in keys.items()
        ]
        if tasks and context.spec.rewards.judges:
            samples = sum(len(task.prompts) for task in tasks) * context.spec.rollout.samples_per_prompt
            session.actors.begin_wave(wave_name(tasks[0].key), samples)
        collection = session.actors.begin_collecting(tasks) if tasks else None
        return cls(context=context, branch=branch, iteration=iteration, wave=number, term=term, collection=collection)

    def receipts(self, is_enough: Callable[[], bool] | None = None) -> Generator[ShardReceipt]:
        """Yields each receipt when the shard's manifest is durable; writes the timings of the stages to a telemetry file.

        is_enough: returns True if no more shards are needed; None if all are.
        """
        if self.collection is None:
            return
        telemetry: dict[str, dict[str, object]] = {}
        try:
            for receipt in self.collection.receipts(is_enough):
                efforts = {SCORES: [asdict(effort) for effort in receipt.efforts]} if receipt.efforts else {}
                telemetry[f"shard-{receipt.key.shard:04d}"] = {**receipt.timing, **efforts}
                yield receipt
        finally:
            write_telemetry(
                run_folder=self.context.folder,
                branch=self.branch,
                iteration=self.iteration,
                name=f"collect.w{self.wave:02d}.t{self.term:04d}",
                values=telemetry,
            )


def record(context: RunContext, row: ShardRow, replaces: bool) -> None:
    """Records a sealed shard in the ledger. replaces: whether one is recorded that is damaged."""
    if replaces:
        context.ledger.records.replace_shard(context.fence, row)
    else:
        context.ledger.records.shard(context.fence, row)


def row_of(receipt: ShardReceipt) -> ShardRow:
    """Returns a sealed shard as the ledger keeps it."""
    return ShardRow(
        branch=receipt.key.branch,
        iteration=receipt.key.iteration,
        wave=receipt.key.wave,
        shard=receipt.key.shard,
        term=receipt.term,
        folder=receipt.folder,
        manifest_sha256=receipt.manifest_sha256,
        samples=receipt.samples,
        tokens=receipt.tokens,
        group_digests=receipt.group_digests,
        sums=dict(receipt.sums),
        adopted=receipt.adopted,
    )
