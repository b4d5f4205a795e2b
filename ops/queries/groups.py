"""The samples of an iteration by prompt: a group is one prompt's responses.

Consumes the same files as `ops.queries.rollouts`; produces `Groups`, a page of groups with all their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.answers import answers_of
from ops.queries.experience import IterationExperience, SampleTable, Validity, find_iteration, sample_table
from ops.queries.rollout_page import Page, page_fields
from ops.queries.rollouts import SampleView, sample_views
from ops.queries.sample_filters import PROMPT_ORDER, Selection, column_of, orders_of, selected
from yatt_core.experience.table import PART_PREFIX, group_offsets

SPREAD = "spread"
CORRECT = "correct"
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One prompt's samples, and means over them.

    answer: the reference answer; None if there is none, or if it cannot be read.
    matching: number of its samples that match the search.
    reward, spread, lowest, highest, correct_fraction: mean and standard deviation of the reward, its bounds, and the fraction of
        correct samples, over the samples with a score; None if none has one.
    rewards: means of the parts of the reward by name, over these samples; empty if there are none.
    tokens: mean over all samples.
    advantage: the largest advantage; None if it is unknown.
    validity: every `Validity` among the samples.
    """

    prompt_ordinal: int
    prompt_id: str
    prompt: str
    prompt_cut: bool
    answer: str | None
    matching: int
    reward: float | None
    spread: float | None
    lowest: float | None
    highest: float | None
    rewards: Mapping[str, float]
    advantage: float | None
    correct_fraction: float | None
    tokens: float
    validity: tuple[str, ...]
    samples: tuple[SampleView, ...]


@dataclass(frozen=True, slots=True)
class Groups(Page):
    """A page of an iteration's groups.

    prompts: number of groups examined.
    """

    prompts: int
    groups: tuple[GroupView, ...]


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """An iteration's rows in order of prompt and sample, and where each group starts: [groups + 1]."""

    place: IterationExperience
    table: SampleTable
    bounds: Int64

    @property
    def starts(self) -> Int64:
        """The first row of each group: [groups]."""
        return self.bounds[:-1]

    def column(self, name: str) -> Float64:
        """Returns a column of numbers: [rows]; missing values are NaN."""
        values: Float64 = pc.cast(self.table.rows[name], pa.float64()).to_numpy()
        return values

    def means(self, name: str) -> Float64:
        """Returns the mean of a column over the known values of each group: [groups]; NaN without any.

        Those of samples without a score do not count as parts of the reward.
        """
        values = self.column(name)
        if name.startswith(PART_PREFIX):
            values = np.where(np.isnan(self.column("reward")), np.nan, values)
        return self._means_of(values)

    def spreads(self) -> Float64:
        """Returns the standard deviation of the reward in each group: [groups]; NaN without any score."""
        off = self.column("reward") - np.repeat(self.means("reward"), np.diff(self.bounds))
        spreads: Float64 = np.sqrt(self._means_of(off * off))
        return spreads

    def _means_of(self, values: Float64) -> Float64:
        is_known = ~np.isnan(values)
        sums = np.add.reduceat(np.where(is_known, values, 0.0), self.starts)
        counts = np.add.reduceat(is_known, self.starts, dtype=np.int64)
        means: Float64 = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return means

    def values(self, order: str) -> Float64:
        """Returns the number by which each group is sorted: [groups]. Raises `InvalidQuery`."""
        if order == SPREAD:
            return self.spreads()
        if order == CORRECT:
            return self.means("correct")
        if order == "advantage":
            highest: Float64 = np.fmax.reduceat(self.column("advantage"), self.starts)
            return highest
        return self.means(column_of(self.table, order))


def grouped_rows(ledger: Ledger, home: Home, run: str, iteration: int) -> GroupedRows:
    """Returns an iteration's rows by group. Raises as `ops.queries.rollouts.rollouts` does."""
    place = find_iteration(ledger, home, run, iteration)
    table = sample_table(ledger, place)
    return GroupedRows(place, table, group_offsets(table.rows["prompt_ordinal"].to_numpy()))


def groups(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int,
    wanted: Selection,
    limit: int = 10,
    offset: int = 0,
    characters: int = 2_000,
) -> Groups:
    """Returns the groups that have a matching sample, with all their samples.

    A group is sorted by the mean over its samples, by its largest advantage, or by the `spread` of its rewards.

    Raises as `ops.queries.rollouts.rollouts` does.
    """
    return group_page(
        ledger=ledger,
        home=home,
        found=grouped_rows(ledger, home, run, iteration),
        wanted=wanted,
        limit=limit,
        offset=offset,
        characters=characters,
    )


def group_page(
    ledger: Ledger, home: Home, found: GroupedRows, wanted: Selection, limit: int, offset: int, characters: int
) -> Groups:
    """Returns a page of an iteration's groups, as `groups` does."""
    place = found.place
    table = found.table
    hits = selected(place, table, wanted).to_numpy(zero_copy_only=False).astype(np.bool_)
    matching = np.add.reduceat(hits, found.starts, dtype=np.int64)
    order = _order(found, wanted)
    chosen = order[matching[order] > 0]
    shown = chosen[offset : offset + limit]
    views, no_answers = group_views(
        ledger=ledger, home=home, found=found, shown=shown, matching=matching, characters=characters
    )
    page = page_fields(
        place=place, table=table, matching=len(chosen), offset=offset, orders=group_orders(table), no_answers=no_answers
    )
    return Groups(**page, prompts=len(found.starts), groups=views)


def group_orders(table: SampleTable) -> tuple[str, ...]:
    """Returns the names by which groups can be sorted."""
    return (*orders_of(table), SPREAD, CORRECT)


def group_views(
    ledger: Ledger, home: Home, found: GroupedRows, shown: Int64, matching: Int64, characters: int
) -> tuple[tuple[GroupView, ...], str]:
    """Returns some groups with their texts, and why they have no reference answers; empty if they have.

    shown: indices of the groups.
    matching: number of matching samples by group: [groups].
    """
    counts = np.diff(found.bounds)
    rows = np.concatenate([np.arange(found.bounds[at], found.bounds[at + 1]) for at in shown] or [shown])
    chosen = found.table.rows.take(pa.array(rows))
    answers, no_answers = answers_of(ledger, home, found.place, chosen)
    samples = list(sample_views(found.place, chosen, answers, characters))
    views = []
    start = 0
    for at in shown.tolist():
        views.append(group_of(samples[start : start + counts[at]], int(matching[at])))
        start += int(counts[at])
    return tuple(views), no_answers


def _order(found: GroupedRows, wanted: Selection) -> Int64:
    """Returns the indices of the groups in the wanted order; groups without a value come last."""
    if wanted.order == PROMPT_ORDER:
        return np.arange(len(found.starts))
    values = found.values(wanted.order)
    return np.argsort(values if wanted.ascending else -values, kind="stable")


def group_of(samples: Sequence[SampleView], matching: int) -> GroupView:
    """Returns the group of one prompt's samples. matching: number of those that match the search."""
    first = samples[0]
    scored = [each for each in samples if each.reward is not None]
    rewards = np.array([each.reward for each in scored])
    known = [each.advantage for each in samples if each.advantage is not None]
    present = {each.validity for each in samples}
    return GroupView(
        prompt_ordinal=first.prompt_ordinal,
        prompt_id=first.prompt_id,
        prompt=first.prompt,
        prompt_cut=first.prompt_cut,
        answer=first.answer,
        matching=matching,
        reward=_over(rewards, np.mean),
        spread=_over(rewards, np.std),
        lowest=_over(rewards, np.min),
        highest=_over(rewards, np.max),
        rewards=_means_of_parts(scored),
        advantage=max(known, default=None),
        correct_fraction=_over(np.array([each.correct for each in scored]), np.mean),
        tokens=float(np.mean([each.tokens for each in samples])),
        validity=tuple(each.value for each in Validity if each.value in present),
        samples=tuple(samples),
    )


def _means_of_parts(scored: Sequence[SampleView]) -> dict[str, float]:
    """Returns the means of the parts of the reward, by name, over samples with a score; nothing without any."""
    names = scored[0].rewards if scored else ()
    values = {name: [value for each in scored if (value := each.rewards[name]) is not None] for name in names}
    return {name: float(np.mean(known)) for name, known in values.items()}


def _over(values: npt.NDArray[Any], statistic: Callable[[npt.NDArray[Any]], Any]) -> float | None:
    """Returns a statistic of values; None if there are none."""
    return float(statistic(values)) if len(values) else None
