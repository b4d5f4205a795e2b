"""The waves of an iteration in the ledger: plans, cuts and outcomes.

Each of these is recorded before it takes effect, and a recovering driver obeys it. The decisions themselves are made
by `yatt_core.experience.dynamic_sampling`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from db.write.records import ChoiceRow, WaveRow
from flows.driver.context import RunContext
from yatt_core.counting import many
from yatt_core.experience.dynamic_sampling import Sampling, WaveGroups, WaveOutcome, WavePlan, shortfall
from yatt_core.experience.slicing import SLICES, DrawnGroup, RoundOutcome, RoundPlan, Slicing, wave_outcome_of
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import GroupFacts

log = logging.getLogger("yatt_core.flow")


@dataclass(frozen=True, slots=True)
class PlannedWave:
    """A recorded wave.

    cursor: the position in the prompt stream before the wave's prompts.
    cut: shards for which the driver does not wait.
    late: whether they were cut because the iteration's time was over, so that this is its last wave. Earlier versions cut the
        stragglers of over-dispatched waves as well.
    outcome: None while the wave is open.
    round, drawn: with slices, what each group draws, and what that has led to; None while the wave is open.
    """

    plan: WavePlan
    cursor: Cursor
    cut: frozenset[int]
    late: bool
    outcome: WaveOutcome | None
    round: RoundPlan | None = None
    drawn: RoundOutcome | None = None


def plan_wave(
    context: RunContext, iteration: int, plan: WavePlan, cursor: Cursor, drawing: RoundPlan | None = None
) -> PlannedWave:
    """Records a wave before it starts; returns the recorded wave, which may be one that an earlier driver planned.

    drawing: what each group draws; None if groups are drawn whole.
    """
    body = asdict(plan) | {"cursor": cursor.to_json()}
    if drawing is not None:
        body[SLICES] = drawing.to_json()
    row = context.ledger.records.wave(context.fence, WaveRow(context.branch, iteration, plan.wave, body))
    return _planned(row, context.ledger.records.choices(context.run, context.branch, iteration))


def planned_waves(context: RunContext, branch: int, iteration: int) -> list[PlannedWave]:
    """Returns the recorded waves of an iteration in order."""
    choices = context.ledger.records.choices(context.run, branch, iteration)
    return [_planned(row, choices) for row in context.ledger.records.waves(context.run, branch, iteration)]


def _planned(row: WaveRow, choices: Mapping[str, ChoiceRow]) -> PlannedWave:
    body: dict[str, Any] = dict(row.plan)
    cursor = Cursor.from_json(body.pop("cursor"))
    drawing = body.pop(SLICES, None)
    cut = choices.get(_cut_name(row.wave))
    outcome = None if row.outcome is None else WaveOutcome.from_json(row.outcome)
    chosen: Mapping[str, Any] = {} if cut is None else cut.body
    return PlannedWave(
        plan=WavePlan(**body),
        cursor=cursor,
        cut=frozenset(chosen.get("shards", ())),
        late=chosen.get("late", False),
        outcome=outcome,
        round=None if drawing is None else RoundPlan.from_json(drawing),
        drawn=None if row.outcome is None or drawing is None else RoundOutcome.from_json(row.outcome[SLICES]),
    )


def record_cut(
    context: RunContext, iteration: int, wave: PlannedWave, shards: Sequence[int], ordinals: Sequence[int]
) -> None:
    """Records, with an event, for which shards of a wave the driver does not wait, because the iteration's time is over.

    ordinals: the ordinals of the shards' prompts.
    """
    number = wave.plan.wave
    body = {"wave": number, "shards": list(shards), "ordinals": list(ordinals), "late": True}
    context.ledger.records.choice(context.fence, ChoiceRow(context.branch, iteration, _cut_name(number), body))
    log.info("wave %d of iteration %d: cut %d prompts", number, iteration, len(ordinals))
    context.observer.warned(
        f"iteration {iteration}: its time is over, and it goes on without {len(ordinals)} of "
        f"{many(wave.plan.prompts, 'prompt')}"
    )


def settle_wave(
    context: RunContext,
    iteration: int,
    wave: PlannedWave,
    sampling: Sampling,
    shards: Iterable[tuple[Sequence[int], GroupFacts]],
    ends: bool,
) -> WaveOutcome:
    """Decides which groups of a finished wave are admitted, and records it; warns if the last wave leaves too few.

    shards: prompt ordinals and group facts of each finished shard.
    ends: whether the iteration's time is over, so that no further wave follows.
    """
    finished = list(shards)
    groups = WaveGroups.gather(finished)
    outcome = sampling.settle(wave.plan, groups, len(finished), ends or wave.late)
    after = sampling.after(outcome)
    warning = shortfall(after) if after.finished else ""
    context.ledger.records.settle_wave(
        fence=context.fence,
        branch=context.branch,
        iteration=iteration,
        wave=wave.plan.wave,
        outcome=outcome.to_json(),
        warning=warning,
    )
    if warning:
        log.warning("iteration %d: %s", iteration, warning)
        context.observer.warned(f"iteration {iteration}: {warning}")
    return outcome


def settle_round(
    context: RunContext, iteration: int, wave: PlannedWave, slicing: Slicing, drawn: Mapping[int, DrawnGroup]
) -> RoundOutcome:
    """Decides from which groups the iteration learns, if enough are complete, and records it; warns of those that are masked.

    drawn: what has become of each group of the round, by prompt ordinal.
    """
    assert wave.round is not None, "a round says what it draws before it starts"
    outcome = slicing.settle(wave.round, drawn)
    body = wave_outcome_of(outcome, wave.plan.shards).to_json() | {SLICES: outcome.to_json()}
    masked = sum(not group.usable for group in outcome.learnt or ())
    warning = ""
    if masked:
        warning = (
            f"{masked} of {many(len(outcome.learnt or ()), 'group')} have too few scores to learn from and are masked"
        )
    context.ledger.records.settle_wave(
        fence=context.fence,
        branch=context.branch,
        iteration=iteration,
        wave=wave.plan.wave,
        outcome=body,
        warning=warning,
    )
    if warning:
        log.warning("iteration %d: %s", iteration, warning)
        context.observer.warned(f"iteration {iteration}: {warning}")
    return outcome


def _cut_name(wave: int) -> str:
    return f"cut-{wave}"
