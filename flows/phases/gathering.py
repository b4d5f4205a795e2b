"""The open iteration's experience: gathered by the controllers wave by wave, each shard recorded on arrival.

A wave's plan is recorded before it starts and its outcome once all its shards are sealed (`flows.phases.waves`); a
recovering driver obeys both. Controllers go on with a wave that was begun while the driver waits for something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from db.write.records import ShardRow
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.phases.experience import Experience, Making, prompts_of, record, row_of, whole_shards
from flows.phases.finishing import AttemptDeadline
from flows.phases.sealed_groups import SlicedExperience, split_shards
from flows.phases.streaming import ShardStream
from flows.phases.waves import PlannedWave, plan_wave, planned_waves, record_cut, settle_round, settle_wave
from flows.run.control_state import ControlState
from yatt_core.errors import InfrastructureError
from yatt_core.experience.dynamic_sampling import Sampling, SamplingRule
from yatt_core.experience.shard_log import read_group_facts, read_slice_facts
from yatt_core.experience.slicing import DrawnGroup, SliceRule, Slicing, wave_plan_of
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.receipts import PEAK_BYTES, GroupFacts, PromptRef, ShardPlace, SliceFacts


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A sealed shard of the open iteration.

    ordinals: ordinals of the shard's prompts.
    facts: facts about the prompts' groups.
    slices: what a round has made of them; None if they are drawn whole.
    peak_bytes: maximum bytes that its controller had in flight; 0 if an earlier session produced the shard.
    """

    row: ShardRow
    ordinals: tuple[int, ...]
    facts: GroupFacts
    slices: SliceFacts | None = None
    peak_bytes: float = 0.0


@dataclass(slots=True)
class Gathering:
    """An open iteration, gathered wave by wave.

    version: of the weights that it is sampled under.
    sampling, cursor: after the waves that are settled.
    shards: of the waves that are settled.
    drawn: the prompts of all waves, by ordinal.
    slicing: after the rounds that are settled; None if responses are drawn whole.
    running: the wave that controllers are at work on.
    stream: the way of sealed shards to the trainer; None unless it learns while engines generate.
    """

    session: DriverSession
    iteration: int
    version: int
    finish: AttemptDeadline
    sampling: Sampling
    cursor: Cursor
    shards: list[SealedShard]
    drawn: dict[int, PromptRef]
    slicing: Slicing | None = None
    running: RunningWave | None = None
    stream: ShardStream | None = None

    @property
    def finished(self) -> bool:
        """True if no further wave follows."""
        return self.sampling.finished if self.slicing is None else self.slicing.finished

    def begin_wave(self) -> None:
        """Plans the next wave and has the controllers begin with what it lacks."""
        context = self.session.context
        if self.slicing is None:
            wave = plan_wave(context, self.iteration, self.sampling.plan(), self.cursor)
        else:
            new, _ = draw(context.spec.data, context.spec.seed, self.cursor, self.slicing.wanted)
            drawing = self.slicing.plan(new)
            wave = plan_wave(
                context=context,
                iteration=self.iteration,
                plan=wave_plan_of(drawing, self.slicing),
                cursor=self.cursor,
                drawing=drawing,
            )
        prompts, self.cursor = prompts_of(context, wave)
        self.drawn |= {ref.ordinal: ref for ref in prompts}
        self.running = self._begun(wave, split_shards(prompts, wave.plan.shards))

    def _begun(self, wave: PlannedWave, prompts: Sequence[tuple[PromptRef, ...]]) -> RunningWave:
        session = self.session
        context = session.context
        ordinals = [tuple(ref.ordinal for ref in part) for part in prompts]
        recorded = context.ledger.records.shards(context.run, context.branch, self.iteration, wave.plan.wave)
        sealed = {
            row.shard: SealedShard(
                row, ordinals[row.shard], read_group_facts(context.folder, row), read_slice_facts(context.folder, row)
            )
            for row in whole_shards(context, recorded)
        }
        lost = frozenset(row.shard for row in recorded) - sealed.keys()
        earlier = sum(outcome.groups for outcome in self.sampling.outcomes)
        work = OpenWave(wave=wave, total=len(prompts), earlier=earlier, finish=self.finish, sealed=sealed, lost=lost)
        session.threads.allow(session.actors.deadline, f"wave {wave.plan.wave} of iteration {self.iteration}")
        making = Making.begin(
            session=session,
            branch=context.branch,
            iteration=self.iteration,
            wave=wave,
            prompts=prompts,
            shards=[] if work.is_enough() else work.missing,
            version=self.version,
        )
        return RunningWave(work, ordinals, making)

    def settle(self) -> None:
        """Waits for the shards of the wave that was begun, and decides which of its groups are admitted."""
        assert self.running is not None, "a wave is begun before it is settled"
        wave = self.running.work.wave
        sealed = _sealed_wave(self.session, self.iteration, self.running, self.stream)
        self.shards += sealed
        if self.slicing is not None:
            self._settle_round(wave, self.slicing, sealed)
            return
        outcome = wave.outcome
        if outcome is None:
            outcome = settle_wave(
                context=self.session.context,
                iteration=self.iteration,
                wave=wave,
                sampling=self.sampling,
                shards=((shard.ordinals, shard.facts) for shard in sealed),
                ends=self.finish.is_over,
            )
        self.sampling = self.sampling.after(outcome)

    def _settle_round(self, wave: PlannedWave, slicing: Slicing, sealed: Sequence[SealedShard]) -> None:
        outcome = wave.drawn
        if outcome is None:
            drawn = drawn_groups(self.iteration, sealed, slicing.rule.least_scored)
            outcome = settle_round(
                context=self.session.context, iteration=self.iteration, wave=wave, slicing=slicing, drawn=drawn
            )
        assert wave.round is not None, "a round says what it draws before it starts"
        self.slicing = slicing.after(wave.round, outcome)

    def gathered(self) -> Experience:
        """Returns the experience of an iteration whose waves are all settled."""
        spec = self.session.context.spec
        # With slices a shard has facts only about its complete groups; no curriculum learns from them.
        whole = self.shards if self.slicing is None else ()
        results = (
            (self.drawn[ordinal], correct / scored)
            for shard in whole
            for ordinal, correct, scored in zip(
                shard.ordinals,
                shard.facts.correct,
                shard.facts.scored or [spec.rollout.samples_per_prompt] * len(shard.ordinals),
                strict=True,
            )
            if scored
        )
        cursor = self.cursor.learned(spec.data, spec.seed, self.iteration, results)
        peak = max((shard.peak_bytes for shard in self.shards), default=0.0)
        return Experience(
            shards=tuple(shard.row for shard in self.shards),
            sampling=self.sampling,
            cursor=cursor,
            peak_bytes=peak,
            sliced=None if self.slicing is None else SlicedExperience.of(self.session.context, self.slicing),
        )


def begin_gathering(session: DriverSession, iteration: int, state: ControlState, version: int) -> Gathering:
    """Opens an iteration and has the controllers begin with its first wave, under the weights that the engines hold.

    state: the prompt cursor, the sampling average and the groups in flight from which the iteration goes on.
    version: of the engines' weights, or, if the iteration was collected before, of those that it was sampled under.
    """
    spec = session.context.spec
    rule = SliceRule.of(spec)
    gathering = Gathering(
        session=session,
        iteration=iteration,
        version=version,
        finish=AttemptDeadline.start(
            spec.dynamic_sampling.deadline, spec.data.prompts_per_iteration, session.context.clock
        ),
        sampling=Sampling(SamplingRule.of(spec), state.sampling_average),
        cursor=state.cursor.under(spec.data, session.start.inputs.pools),
        shards=[],
        drawn={},
        slicing=None
        if rule is None or _is_whole(session.context, iteration)
        else Slicing(rule, iteration, state.carried),
        stream=ShardStream(session, iteration, state) if spec.asynchrony.streamed else None,
    )
    gathering.begin_wave()
    return gathering


def _is_whole(context: RunContext, iteration: int) -> bool:
    """Returns True if an earlier version began the iteration with whole responses, though the spec now has them go on."""
    waves = planned_waves(context, context.branch, iteration)
    return bool(waves) and waves[0].round is None


def finish_gathering(gathering: Gathering) -> Experience:
    """Gathers what is left of all waves of an iteration: keeps intact shards, and has the controllers make the others.

    Once the time of `dynamic_sampling.deadline` is over, the wave in progress goes on without its unfinished shards, and is
    the last.
    """
    gathering.settle()
    while not gathering.finished:
        gathering.begin_wave()
        gathering.settle()
    return gathering.gathered()


def drawn_groups(iteration: int, sealed: Sequence[SealedShard], least_scored: int) -> dict[int, DrawnGroup]:
    """Returns what has become of each group of a round, by prompt ordinal.

    least_scored: responses with a score that a group needs to be learnt from.
    """
    drawn: dict[int, DrawnGroup] = {}
    for shard in sealed:
        facts = shard.slices
        if facts is None:
            raise InfrastructureError(f"{shard.row.folder}: was sealed without what a round made of its groups")
        place = ShardPlace(iteration, shard.row.wave, shard.row.shard)
        lengths = facts.lengths or ((),) * len(shard.ordinals)  # shards of older versions do not say
        for ordinal, completed, scored, each in zip(
            shard.ordinals, facts.completed, facts.scored, lengths, strict=True
        ):
            drawn[ordinal] = DrawnGroup(place, completed, scored >= least_scored, each)
    return drawn


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
    finish: AttemptDeadline
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
        """Returns True if the wave needs no more shards; an earlier driver may have left some out."""
        return len(self.sealed) + len(self.wave.cut) == self.total

    def is_late(self) -> bool:
        """Returns True if the rest may be left out because the iteration's time is over."""
        is_open = self.wave.outcome is None and not self.wave.cut
        return is_open and self.lost <= self.sealed.keys() and self.finish.allows(self.earlier + self._finished)

    def left_out(self) -> list[int]:
        """Returns the shards that are to be cut: those that are not sealed, if no choice has been recorded yet."""
        if self.wave.outcome is not None or self.wave.cut:
            return []
        return [shard for shard in range(self.total) if shard not in self.sealed]


@dataclass(frozen=True, slots=True)
class RunningWave:
    """A wave that controllers are at work on.

    ordinals: of each shard's prompts.
    """

    work: OpenWave
    ordinals: Sequence[tuple[int, ...]]
    making: Making


def _sealed_wave(
    session: DriverSession, iteration: int, running: RunningWave, stream: ShardStream | None
) -> list[SealedShard]:
    """Returns the wave's finished shards in order.

    Cancels what is unfinished when the iteration's time is over.
    """
    context = session.context
    work = running.work
    ordinals = running.ordinals
    plan = work.wave.plan
    session.threads.allow(session.actors.deadline, f"wave {plan.wave} of iteration {iteration}")
    stop = None if work.finish.spec is None else work.is_late
    if stream is not None:
        stream.offer(work.sealed)
    with closing(running.making.receipts(stop)) as receipts:
        for receipt in receipts:
            row = row_of(receipt)
            record(context, row, replaces=row.shard in work.lost)
            peak = receipt.timing.get(PEAK_BYTES, 0.0)
            work.sealed[row.shard] = SealedShard(
                row=row,
                ordinals=ordinals[row.shard],
                facts=receipt.groups,
                slices=receipt.slices,
                peak_bytes=peak,
            )
            if stream is not None:
                stream.offer(work.sealed)
    if not work.is_enough() and not work.is_late():
        raise InfrastructureError(f"wave {plan.wave}: the controllers finished before all shards were sealed")
    if cut := work.left_out():
        record_cut(
            context=context,
            iteration=iteration,
            wave=work.wave,
            shards=cut,
            ordinals=[ordinal for shard in cut for ordinal in ordinals[shard]],
        )
        session.actors.cut()
    return [work.sealed[shard] for shard in sorted(work.sealed)]
