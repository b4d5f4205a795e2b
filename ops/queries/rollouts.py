"""The samples of an iteration, searched, filtered, sorted and paged.

Consumes the sealed shards that the ledger names (Parquet); produces `Rollouts`. The amount read is bounded: columns with one
value per sample first, then only the texts of the samples shown, cut to a maximum length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.answers import answers_of
from ops.queries.experience import BATCH, IterationExperience, SampleTable, find_iteration, opened, sample_table
from ops.queries.judge_words import JudgementView, judgements_of
from ops.queries.rollout_page import Page, page_fields
from ops.queries.sample_filters import Selection, orders_of, selected, sort_samples
from yatt_core.experience.table import PART_PREFIX

CHARACTERS = 100_000
"""Maximum number of characters returned from a text."""
TEXTS = ("prompt", "response", "reward_error", "tool_error")
KEYS = (
    *("prompt_ordinal", "sample", "prompt_id", "source", "finish", "truncated", "correct", "reward", "tokens"),
    *("advantage", "validity", "weight_version"),
)
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampleView:
    """A sample.

    answer: the reference answer; None if there is none, or if it cannot be read.
    characters: length of the whole response.
    prompt_cut, response_cut: True if the text was cut.
    correct, reward: None if it has no score.
    rewards: the parts of the reward by name; None for those that left it without a score.
    advantage: None if it is unknown.
    tokens: length of the response.
    judgements: what judges said about it, by reward part; empty without judges.
    """

    prompt_ordinal: int
    sample: int
    prompt_id: str
    source: int
    prompt: str
    prompt_cut: bool
    answer: str | None
    response: str
    response_cut: bool
    characters: int
    tokens: int
    finish: str
    truncated: bool
    validity: str
    correct: bool | None
    reward: float | None
    rewards: Mapping[str, float | None]
    advantage: float | None
    reward_error: str | None
    turns: int | None
    tool_error: str | None
    weight_version: int
    judgements: tuple[JudgementView, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollouts(Page):
    """A page of an iteration's samples."""

    samples: tuple[SampleView, ...]


def rollouts(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int,
    wanted: Selection,
    limit: int = 20,
    offset: int = 0,
    characters: int = 2_000,
) -> Rollouts:
    """Returns samples of an iteration along the current line, even if it is still in progress.

    characters: maximum length of each text.

    Raises `RunNotFound`; `ConfigurationError` if no experience of the iteration is recorded; `InvalidQuery` for a condition or
    an order that does not apply; `DataError` if a file does not match its recorded digest.
    """
    place = find_iteration(ledger, home, run, iteration)
    return sample_page(
        ledger=ledger,
        home=home,
        place=place,
        table=sample_table(ledger, place),
        wanted=wanted,
        limit=limit,
        offset=offset,
        characters=characters,
    )


def sample_page(
    ledger: Ledger,
    home: Home,
    place: IterationExperience,
    table: SampleTable,
    wanted: Selection,
    limit: int,
    offset: int,
    characters: int,
) -> Rollouts:
    """Returns a page of an iteration's samples, as `rollouts` does."""
    matching = table.rows.filter(selected(place, table, wanted))
    chosen = sort_samples(table, matching, wanted).slice(offset, limit)
    answers, no_answers = answers_of(ledger, home, place, chosen)
    page = page_fields(
        place=place,
        table=table,
        matching=matching.num_rows,
        offset=offset,
        orders=orders_of(table),
        no_answers=no_answers,
    )
    return Rollouts(**page, samples=tuple(sample_views(place, chosen, answers, characters)))


def sample_views(
    place: IterationExperience, chosen: pa.Table, answers: Mapping[int, str | None], characters: int
) -> Iterator[SampleView]:
    """Yields the chosen samples with their texts, in order.

    answers: the reference answers by ordinal of the prompt.
    """
    places = list(zip(chosen["shard"].to_pylist(), chosen["row"].to_pylist(), strict=True))
    texts = read_texts(place, places, TEXTS)
    limit = min(characters, CHARACTERS)
    rows = chosen.to_pylist()
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        by_shard.setdefault(row["shard"], []).append((row["prompt_ordinal"], row["sample"]))
    judgements = judgements_of(place, by_shard, limit)
    for row, at in zip(rows, places, strict=True):
        said = judgements.get((row["prompt_ordinal"], row["sample"]), ())
        yield _view(row=row, texts=texts[at], answer=answers.get(row["prompt_ordinal"]), limit=limit, judgements=said)


def read_texts(
    place: IterationExperience, places: Sequence[tuple[int, int]], names: Sequence[str]
) -> dict[tuple[int, int], Row]:
    """Returns some columns of the samples at the given shards and rows, by shard and row."""
    found: dict[tuple[int, int], Row] = {}
    for number in sorted({shard for shard, _ in places}):
        wanted = sorted(row for shard, row in set(places) if shard == number)
        with opened(place.folder, place.shards[number]) as file:
            for row, values in zip(wanted, _taken(file, wanted, names), strict=True):
                found[number, row] = values
    return found


def _taken(file: pq.ParquetFile, rows: Sequence[int], names: Sequence[str]) -> Iterator[Row]:
    """Yields the given rows of a file, in order."""
    columns = [name for name in file.schema_arrow.names if name in names]
    start = 0
    left = list(rows)
    for batch in file.iter_batches(batch_size=BATCH, columns=columns, use_threads=False):
        here = [row - start for row in left if row < start + batch.num_rows]
        yield from batch.take(pa.array(here, pa.int32())).to_pylist()
        start = start + batch.num_rows
        left = left[len(here) :]
        if not left:
            return


def _view(row: Row, texts: Row, answer: str | None, limit: int, judgements: tuple[JudgementView, ...]) -> SampleView:
    return SampleView(
        **{name: row[name] for name in KEYS},
        prompt=texts["prompt"][:limit],
        prompt_cut=len(texts["prompt"]) > limit,
        answer=None if answer is None else answer[:limit],
        response=texts["response"][:limit],
        response_cut=len(texts["response"]) > limit,
        characters=len(texts["response"]),
        rewards={name.removeprefix(PART_PREFIX): row[name] for name in row if name.startswith(PART_PREFIX)},
        reward_error=texts["reward_error"],
        turns=row.get("turns"),
        tool_error=texts.get("tool_error"),
        judgements=judgements,
    )
