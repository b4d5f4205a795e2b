"""Compares two iterations of a run: their rewards, the prompts that both sampled, and their groups side by side.

Consumes the tables of `ops.queries.groups`; produces `RolloutComparison` and `GroupPairs`. A group's counterpart is the same
prompt in the other iteration or, if it did not recur, the most similar one (`ops.queries.nearest`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from db.ledger import Ledger
from flows.run.home import Home
from ops.presentation.columns import Column, Columns, LinkCell, ShareCell
from ops.queries.groups import GroupedRows, Groups, GroupView, group_page, group_views, grouped_rows
from ops.queries.nearest import nearest
from ops.queries.rollouts import read_texts
from ops.queries.sample_filters import Selection

BINS = 20
PROMPTS = 50
"""Maximum number of shared prompts in a comparison."""
CANDIDATES = 2_048
"""Maximum number of prompts of the other iteration among which the most similar one is sought."""
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """Statistics of the rewards of an iteration's samples.

    samples: number of samples in the iteration; seen: of these, the number examined.
    mean, deviation, correct_fraction: over those with a score; None if none has one.
    counts: number of samples with a score between each two adjacent edges of the comparison.
    """

    iteration: int
    samples: int
    seen: int
    mean: float | None
    deviation: float | None
    correct_fraction: float | None
    truncated_fraction: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """A prompt that both iterations sampled, with its mean reward in each; None where no sample has a score.

    prompt_ordinal: its ordinal in the later iteration of the comparison.
    """

    prompt_id: str
    prompt_ordinal: int
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """How much the mean reward has grown; None if it is not known in both iterations."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, slots=True)
class RolloutComparison:
    """A comparison of two iterations of a run.

    shared: number of prompts that both iterations sampled.
    prompts: these prompts, largest change first and those without a known change last, at most `PROMPTS`.
    """

    run: str
    edges: tuple[float, ...]
    before: RewardSummary
    after: RewardSummary
    shared: int
    prompts: tuple[SharedPrompt, ...]


@dataclass(frozen=True, slots=True)
class GroupPair:
    """A group and its counterpart in the other iteration.

    before: None if no prompt there is similar.
    similarity: 1 for the same prompt; None without a counterpart.
    """

    after: GroupView
    before: GroupView | None
    same: bool
    similarity: float | None


@dataclass(frozen=True, slots=True)
class GroupPairs:
    """A page of the groups of iteration `after`, each with its counterpart in iteration `before`."""

    before: int
    after: Groups
    pairs: tuple[GroupPair, ...]


def read_both(ledger: Ledger, home: Home, run: str, before: int, after: int) -> tuple[GroupedRows, GroupedRows]:
    """Returns the rows of two iterations. Raises what `ops.queries.rollouts.rollouts` raises."""
    return grouped_rows(ledger, home, run, before), grouped_rows(ledger, home, run, after)


def group_pairs(
    ledger: Ledger,
    home: Home,
    other: GroupedRows,
    rows: GroupedRows,
    wanted: Selection,
    limit: int = 10,
    offset: int = 0,
    characters: int = 2_000,
) -> GroupPairs:
    """Returns groups of an iteration, selected as by `groups`, each with its counterpart in the other iteration."""
    found = group_page(
        ledger=ledger, home=home, found=rows, wanted=wanted, limit=limit, offset=offset, characters=characters
    )
    partners = _partners(rows, other, found.groups)
    shown = sorted({at for at, _, _ in partners if at is not None})
    views, _ = group_views(
        ledger=ledger,
        home=home,
        found=other,
        shown=np.array(shown, np.int64),
        matching=np.diff(other.bounds),
        characters=characters,
    )
    by_index = dict(zip(shown, views, strict=True))
    pairs = (
        GroupPair(group, None if at is None else by_index[at], same, similarity)
        for group, (at, same, similarity) in zip(found.groups, partners, strict=True)
    )
    return GroupPairs(other.place.number, found, tuple(pairs))


def comparison(before: GroupedRows, after: GroupedRows) -> RolloutComparison:
    """Compares the rewards of two iterations, and the prompts that both sampled."""
    rewards = [_known(side.column("reward")) for side in (before, after)]
    edges = np.histogram_bin_edges(np.concatenate(rewards), bins=BINS)
    left, right = (_summary(side, values, edges) for side, values in zip((before, after), rewards, strict=True))
    shared = _shared(before, after)
    return RolloutComparison(
        run=after.place.run,
        edges=tuple(float(edge) for edge in edges),
        before=left,
        after=right,
        shared=len(shared),
        prompts=tuple(shared[:PROMPTS]),
    )


def _partners(
    rows: GroupedRows, other: GroupedRows, shown: Sequence[GroupView]
) -> list[tuple[int | None, bool, float | None]]:
    """Returns for each group the index of its counterpart, whether it is the same prompt, and their similarity."""
    known = _first_groups(other)
    missing = [group.prompt_ordinal for group in shown if group.prompt_id not in known]
    similar = dict(zip(missing, _most_similar(rows, other, missing), strict=True)) if missing else {}
    found: list[tuple[int | None, bool, float | None]] = []
    for group in shown:
        if group.prompt_id in known:
            found.append((known[group.prompt_id], True, 1.0))
        else:
            near = similar[group.prompt_ordinal]
            found.append((None, False, None) if near is None else (near[0], False, near[1]))
    return found


def _most_similar(rows: GroupedRows, other: GroupedRows, ordinals: Sequence[int]) -> list[tuple[int, float] | None]:
    """Returns for each prompt of `rows` the index of the most similar one of `other`, and their similarity."""
    at = np.searchsorted(rows.table.rows["prompt_ordinal"].to_numpy(), np.array(ordinals))
    return nearest(_prompts(rows, at), _prompts(other, other.starts[:CANDIDATES]))


def _prompts(side: GroupedRows, at: npt.NDArray[np.int64]) -> list[str]:
    """Returns the prompts of the given rows, in order."""
    chosen = side.table.rows.take(pa.array(at))
    places = list(zip(chosen["shard"].to_pylist(), chosen["row"].to_pylist(), strict=True))
    texts = read_texts(side.place, places, ("prompt",))
    return [texts[place]["prompt"] for place in places]


def _summary(side: GroupedRows, rewards: Float64, edges: Float64) -> RewardSummary:
    """Returns the statistics of an iteration. rewards: of the samples that have one."""
    rows = side.table.rows
    correct = _known(side.column("correct"))
    return RewardSummary(
        iteration=side.place.number,
        samples=side.place.samples,
        seen=rows.num_rows,
        mean=float(rewards.mean()) if len(rewards) else None,
        deviation=float(rewards.std()) if len(rewards) else None,
        correct_fraction=float(correct.mean()) if len(correct) else None,
        truncated_fraction=float(rows["truncated"].to_numpy().mean()),
        counts=tuple(int(count) for count in np.histogram(rewards, edges)[0]),
    )


def _known(values: Float64) -> Float64:
    """Returns the values that are not NaN."""
    known: Float64 = values[~np.isnan(values)]
    return known


def _first_groups(side: GroupedRows) -> dict[str, int]:
    """Returns the index of each prompt's first group, by the prompt's id."""
    found: dict[str, int] = {}
    for at, name in enumerate(side.table.rows["prompt_id"].take(pa.array(side.starts)).to_pylist()):
        found.setdefault(name, at)
    return found


def _shared(before: GroupedRows, after: GroupedRows) -> list[SharedPrompt]:
    left = _first_groups(before)
    right = _first_groups(after)
    old = _plain(before.means("reward"))
    new = _plain(after.means("reward"))
    ordinals = after.table.rows["prompt_ordinal"].to_numpy()[after.starts]
    shared = [
        SharedPrompt(name, int(ordinals[right[name]]), old[left[name]], new[right[name]])
        for name in left.keys() & right.keys()
    ]
    shared.sort(key=lambda row: (math.inf if row.change is None else -abs(row.change), row.prompt_id))
    return shared


def _plain(values: Float64) -> list[float | None]:
    """Returns values with None in place of NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _samples(side: RewardSummary) -> str:
    return str(side.samples) if side.seen == side.samples else f"{side.seen} of {side.samples}"


def _change(prompt: SharedPrompt) -> str | None:
    return None if prompt.change is None else f"{prompt.change:+.3g}"


SUMMARIES: Columns[RewardSummary] = (
    Column("iteration", lambda side: str(side.iteration), heads=True),
    Column("samples", _samples, number=True),
    Column("reward", lambda side: side.mean, number=True),
    Column("deviation", lambda side: side.deviation, number=True),
    Column("correct", lambda side: ShareCell(side.correct_fraction), number=True),
    Column("truncated", lambda side: ShareCell(side.truncated_fraction), number=True),
)


def shared_columns(found: RolloutComparison | None, address: Callable[[int], str]) -> Columns[SharedPrompt]:
    """Returns the columns of the prompts that two iterations sampled; none without a comparison.

    address: returns the address of a prompt's samples.
    """
    if found is None:
        return ()
    return (
        Column(
            "prompt", lambda each: LinkCell(each.prompt_id, address(each.prompt_ordinal)), heads=True, style="break"
        ),
        Column(f"in {found.before.iteration}", lambda each: each.before, number=True),
        Column(f"in {found.after.iteration}", lambda each: each.after, number=True),
        Column("change", _change, number=True),
    )
