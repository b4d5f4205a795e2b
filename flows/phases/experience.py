"""An iteration's sealed shards: made by the controllers wave by wave, recorded on arrival, rebuilt if damaged.

A wave's plan is recorded before it starts and its outcome once all its shards are sealed (`flows.phases.waves`); a
recovering driver obeys both. A recorded shard is kept as long as its files match their digests. A damaged shard is
rebuilt alone, from the same prompts, seeds and weights, and must reproduce the recorded digests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

from db.write.records import ShardRow
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.files.storage import whole_shards as whole_on_any_tier
from flows.phases.finishing import Finish
from flows.phases.metrics import add_sums
from flows.phases.waves import PlannedWave, plan_wave, planned_waves, record_cut, settle_wave
from flows.run.control_state import ControlState
from yatt_core.digests import experience_digest_of_iteration
from yatt_core.errors import InfrastructureError
from yatt_core.experience.dynamic_sampling import Sampling, SamplingRule, admission_of
from yatt_core.experience.shard_log import read_group_facts
from yatt_core.experience.telemetry import SCORES, write_telemetry
from yatt_core.keys import WorkKey, wave_name
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.receipts import PEAK_BYTES, Admission, GroupFacts, PromptRef, ShardReceipt, ShardRef, ShardTask
from yatt_core.spent_time import DATA, spent
from yatt_core.tracing.calls import call_term


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """Sealed shards in canonical order.

    admission: the groups to learn from; None for all of them.
    """

    shards: tuple[ShardRef, ...]
    admission: Admission | None


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A sealed shard of the open iteration.

    ordinals: ordinals of the shard's prompts.
    facts: facts about the prompts' groups.
    peak_bytes: maximum bytes that its controller had in flight; 0 if an earlier session produced the shard.
    """

    row: ShardRow
    ordinals: tuple[int, ...]
    facts: GroupFacts
    peak_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Experience:
    """An iteration's sealed shards in canonical order.

    sampling: the final state of dynamic sampling.
    cursor: the position after the iteration's prompts, with what the curriculum has learned from them.
    peak_bytes: maximum bytes that any controller had in flight.
    """

    shards: tuple[ShardRow, ...]
    sampling: Sampling
    cursor: Cursor
    peak_bytes: float

    @property
    def batch(self) -> SealedBatch:
        """The part of the experience that the trainer needs."""
        return SealedBatch(references_of(self.shards), admission_of(self.sampling.outcomes))

    @property
    def sums(self) -> dict[str, float]:
        """Additive statistics of all samples."""
        return add_sums([row.sums for row in self.shards])

    @property
    def digest(self) -> str:
        """The iteration's experience digest, over all samples, admitted or not."""
        return experience_digest_of_iteration(b"".join(row.group_digests for row in self.shards))


def references_of(rows: Iterable[ShardRow]) -> tuple[ShardRef, ...]:
    """Returns the shards as references for tasks."""
    return tuple(ShardRef(row.folder, row.manifest_sha256) for row in rows)


# -- the open iteration -----------------------------------------------------------------------------------------------


def gather(session: DriverSession, iteration: int, state: ControlState) -> Experience:
    """Gathers all waves of an iteration: keeps intact shards, and has the controllers make the others.

    They are made with the engines' current weights. Once the time of `dynamic_sampling.deadline` is over, the wave in
    progress goes on without its unfinished shards, and is the last.
    """
    spec = session.context.spec
    finish = Finish.start(spec.dynamic_sampling.deadline, spec.data.prompts_per_iteration, session.context.clock)
    sampling = Sampling(SamplingRule.of(spec), state.sampling_average)
    cursor, shards = state.cursor.under(spec.data, session.start.inputs.pools), list[SealedShard]()
    drawn: dict[int, PromptRef] = {}
    while not sampling.finished:
        wave = plan_wave(session.context, iteration, sampling.plan(), cursor)
        prompts, cursor = _prompts_of(session.context, wave)
        drawn |= {ref.ordinal: ref for ref in prompts}
        sealed = _sealed_wave(session, iteration, wave, prompts, sampling, finish)
        groups = ((shard.ordinals, shard.facts) for shard in sealed)
        outcome = wave.outcome
        if outcome is None:
            outcome = settle_wave(session.context, iteration, wave, sampling, groups, finish.is_over)
        sampling = sampling.after(outcome)
        shards += sealed
    results = (
        (drawn[ordinal], correct / scored)
        for shard in shards
        for ordinal, correct, scored in zip(
            shard.ordinals,
            shard.facts.correct,
            shard.facts.scored or itertools.repeat(spec.rollout.samples_per_prompt),
            strict=False,
        )
        if scored
    )
    cursor = cursor.learned(spec.data, spec.seed, iteration, results)
    peak = max((shard.peak_bytes for shard in shards), default=0.0)
    return Experience(tuple(shard.row for shard in shards), sampling, cursor, peak)


@dataclass(slots=True)
class OpenWave:
    """A wave in progress.

    total: number of its shards.
    earlier: number of finished groups of the iteration's earlier waves.
    sealed: its sealed shards, by number.
    lost: shards that are recorded, but damaged, so that they are needed in any case.
    """

    wave: PlannedWave
    total: int
    earlier: int
    finish: Finish
    sealed: dict[int, SealedShard]
    lost: frozenset[int]

    @property
    def missing(self) -> list[int]:
        """The shards to make. Of a settled wave, only damaged shards can be missing."""
        open_shards = range(self.total) if self.wave.outcome is None else sorted(self.lost)
        return [shard for shard in open_shards if shard not in self.sealed and shard not in self.wave.cut]

    @property
    def _finished(self) -> int:
        return sum(len(shard.ordinals) for shard in self.sealed.values())

    def is_enough(self) -> bool:
        """Returns True if the wave needs no more shards."""
        if self.wave.cut:  # by an earlier driver, which has left out no other shard
            return len(self.sealed) + len(self.wave.cut) == self.total
        return self.lost <= self.sealed.keys() and self._finished >= self.wave.plan.wanted

    def is_late(self) -> bool:
        """Returns True if the rest may be left out because the iteration's time is over."""
        is_open = self.wave.outcome is None and not self.wave.cut
        return is_open and self.lost <= self.sealed.keys() and self.finish.allows(self.earlier + self._finished)

    def left_out(self) -> list[int]:
        """Returns the shards that are to be cut: those that are not sealed, if no choice has been recorded yet."""
        if self.wave.outcome is not None or self.wave.cut:
            return []
        return [shard for shard in range(self.total) if shard not in self.sealed]


def _sealed_wave(
    session: DriverSession,
    iteration: int,
    wave: PlannedWave,
    drawn: Sequence[PromptRef],
    sampling: Sampling,
    finish: Finish,
) -> list[SealedShard]:
    """Returns the wave's finished shards in order.

    Cancels the stragglers of an over-dispatched wave, and what is unfinished when the iteration's time is over.
    """
    context = session.context
    prompts = split_shards(drawn, wave.plan.shards)
    ordinals = [tuple(ref.ordinal for ref in part) for part in prompts]
    recorded = context.ledger.records.shards(context.run, context.branch, iteration, wave.plan.wave)
    sealed = {
        row.shard: SealedShard(row, ordinals[row.shard], read_group_facts(context.folder, row))
        for row in whole_shards(context, recorded)
    }
    lost = frozenset(row.shard for row in recorded) - sealed.keys()
    earlier = sum(outcome.groups for outcome in sampling.outcomes)
    work = OpenWave(wave, len(prompts), earlier, finish, sealed, lost)
    session.threads.allow(session.actors.deadline, f"wave {wave.plan.wave} of iteration {iteration}")
    wanted = [] if work.is_enough() else work.missing
    stop = None if finish.spec is None else work.is_late
    with closing(_make(session, context.branch, iteration, wave, prompts, wanted, stop)) as receipts:
        for receipt in receipts:
            row = _row(receipt)
            _record(context, row, replaces=row.shard in lost)
            peak = receipt.timing.get(PEAK_BYTES, 0.0)
            sealed[row.shard] = SealedShard(row, ordinals[row.shard], receipt.groups, peak)
            if wave.plan.is_overdispatched and work.is_enough():
                break
    late = not work.is_enough() and work.is_late()
    if not work.is_enough() and not late:
        raise InfrastructureError(f"wave {wave.plan.wave}: the controllers finished before all shards were sealed")
    if cut := work.left_out():
        record_cut(context, iteration, wave, cut, [ordinal for shard in cut for ordinal in ordinals[shard]], late)
        session.actors.cut()
    return [sealed[shard] for shard in sorted(sealed)]


def cursor_after(context: RunContext, iteration: int, cursor: Cursor) -> Cursor:
    """Returns the cursor after all prompts that an uncommitted iteration has drawn.

    cursor: the position before the iteration.
    """
    if not context.spec.samples_responses:
        return draw(context.spec.data, context.spec.seed, cursor, context.spec.data.prompts_per_iteration)[1]
    waves = planned_waves(context, context.branch, iteration)
    return _prompts_of(context, waves[-1])[1] if waves else cursor


def is_gathered(context: RunContext, iteration: int) -> bool:
    """Returns True if every wave of the current branch's iteration is settled and all its shards are intact.

    A run that samples nothing has nothing to gather.
    """
    if not context.spec.samples_responses:
        return True
    waves = planned_waves(context, context.branch, iteration)
    outcomes = [wave.outcome for wave in waves if wave.outcome]
    if not outcomes or len(outcomes) < len(waves) or outcomes[-1].padding is None:
        return False
    rows = context.ledger.records.shards(context.run, context.branch, iteration)
    return len(whole_shards(context, rows)) == sum(outcome.shards for outcome in outcomes)


# -- committed iterations ---------------------------------------------------------------------------------------------


def sealed_batch(session: DriverSession, branch: int, iteration: int) -> SealedBatch:
    """Returns a committed iteration's experience for replay, with damaged shards rebuilt.

    The trainer must hold the weights from before the iteration's update.
    """
    context = session.context
    recorded = context.ledger.records.shards(context.run, branch, iteration)
    waves = planned_waves(context, branch, iteration)
    whole = {(row.wave, row.shard): row for row in whole_shards(context, recorded)}
    damaged = [(row.wave, row.shard) for row in recorded if (row.wave, row.shard) not in whole]
    if damaged:
        session.actors.sync(iteration - 1)
    for number, places in itertools.groupby(damaged, key=lambda place: place[0]):
        if number >= len(waves):
            raise InfrastructureError(f"run {context.run}, iteration {iteration}: wave {number} is not in the ledger")
        prompts = split_shards(_prompts_of(context, waves[number])[0], waves[number].plan.shards)
        for receipt in _make(session, branch, iteration, waves[number], prompts, [shard for _, shard in places]):
            row = _row(receipt)
            _record(context, row, replaces=True)
            whole[row.wave, row.shard] = row
    outcomes = [wave.outcome for wave in waves if wave.outcome]
    # If no waves are recorded, the update learned from all groups.
    admission = admission_of(outcomes) if outcomes else None
    return SealedBatch(references_of(whole[place] for place in sorted(whole)), admission)


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


def split_shards(references: Sequence[PromptRef], shards: int) -> list[tuple[PromptRef, ...]]:
    """Splits the prompts into contiguous slices whose sizes differ by at most one."""
    bounds = [len(references) * i // shards for i in range(shards + 1)]
    return [tuple(references[bounds[i] : bounds[i + 1]]) for i in range(shards)]


def _prompts_of(context: RunContext, wave: PlannedWave) -> tuple[tuple[PromptRef, ...], Cursor]:
    """Returns the prompts that a wave draws, and the cursor after them."""
    return draw(context.spec.data, context.spec.seed, wave.cursor, wave.plan.prompts)


def _make(
    session: DriverSession,
    branch: int,
    iteration: int,
    wave: PlannedWave,
    prompts: Sequence[tuple[PromptRef, ...]],
    shards: Sequence[int],
    is_enough: Callable[[], bool] | None = None,
) -> Generator[ShardReceipt]:
    """Has the controllers make shards and yields each receipt when the shard's manifest is durable.

    is_enough: returns True if no more shards are needed; None if all are.

    Writes the timings of the stages to a telemetry file.
    """
    context = session.context
    number, term = wave.plan.wave, call_term(context.fence.term)
    keys = {shard: WorkKey(context.run, branch, iteration, "collect", wave=number, shard=shard) for shard in shards}
    tasks = [ShardTask(key, term, prompts[shard], iteration - 1) for shard, key in keys.items()]
    telemetry: dict[str, dict[str, object]] = {}
    if tasks and context.spec.rewards.judges:
        samples = sum(len(task.prompts) for task in tasks) * context.spec.rollout.samples_per_prompt
        session.actors.begin_wave(wave_name(tasks[0].key), samples)
    try:
        for receipt in session.actors.collect(tasks, is_enough):
            efforts = {SCORES: [asdict(effort) for effort in receipt.efforts]} if receipt.efforts else {}
            telemetry[f"shard-{receipt.key.shard:04d}"] = {**receipt.timing, **efforts}
            yield receipt
    finally:
        write_telemetry(context.folder, branch, iteration, f"collect.w{number:02d}.t{term:04d}", telemetry)


def _record(context: RunContext, row: ShardRow, replaces: bool) -> None:
    if replaces:
        context.ledger.records.replace_shard(context.fence, row)
    else:
        context.ledger.records.shard(context.fence, row)


def _row(receipt: ShardReceipt) -> ShardRow:
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
