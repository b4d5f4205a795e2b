"""Conditions on samples, and the order in which they are shown: `reward >= 0.5`, `finish = length`, sorted by a part.

Consumes texts of users and the table of `ops.queries.experience`; produces filtered and sorted tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ops.queries.experience import BATCH, IterationExperience, SampleTable, opened
from yatt_core.errors import ConfigurationError
from yatt_core.experience.table import PART_PREFIX

NUMBERS = ("reward", "advantage", "tokens", "turns", "sample", "prompt", "source", "weight_version")
FLAGS = ("correct", "truncated", "failed")
TEXTS = ("finish", "validity", "prompt_id")
COLUMN_OF = {"prompt": "prompt_ordinal"}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "!=": pc.not_equal,
    "<=": pc.less_equal,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "<": pc.less,
    ">": pc.greater,
}
BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
PROMPT_ORDER = "prompt"


class InvalidQuery(ConfigurationError):
    """A condition or an order that cannot be applied to these samples."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to show of an iteration, and in which order.

    text: text that the prompt or the response must contain, ignoring case.
    prompt: ordinal of the prompt; None for all.
    where: conditions, each `NAME OPERATOR VALUE`; all must hold.
    order: `prompt`, or the name of a number.
    ascending: whether small numbers come first; in the order of prompts they always do.
    """

    text: str = ""
    prompt: int | None = None
    where: tuple[str, ...] = ()
    order: str = PROMPT_ORDER
    ascending: bool = False


def selected(place: IterationExperience, table: SampleTable, wanted: Selection) -> pa.ChunkedArray:
    """Returns for each sample whether it matches. Raises `InvalidQuery`, and `DataError` for a damaged file."""
    rows = table.rows
    mask = pa.array([True] * rows.num_rows, pa.bool_())
    if wanted.prompt is not None:
        mask = pc.equal(rows["prompt_ordinal"], wanted.prompt)
    for condition in wanted.where:
        mask = pc.and_(mask, pc.fill_null(_holds(table, condition), False))
    if wanted.text.strip():
        hits = _containing(place, wanted.text.strip(), pc.max(rows["position"]).as_py() + 1)
        mask = pc.and_(mask, hits.take(rows["position"]))
    return mask


def column_of(table: SampleTable, name: str) -> str:
    """Returns the column of a number, by its name or a part's. Raises `InvalidQuery`, listing the names."""
    known = {each: COLUMN_OF.get(each, each) for each in NUMBERS}
    known |= {part: PART_PREFIX + part for part in table.parts if part not in known}
    known |= {PART_PREFIX + part: PART_PREFIX + part for part in table.parts}
    known = {each: column for each, column in known.items() if column in table.rows.column_names}
    if name not in known:
        raise InvalidQuery(f"order {name!r:.60}: expected one of {', '.join(orders_of(table))}")
    return known[name]


def orders_of(table: SampleTable) -> tuple[str, ...]:
    """Returns the names by which samples can be sorted: `prompt`, then numbers, then parts."""
    numbers = [name for name in ("reward", "advantage", "tokens", "turns") if name in table.rows.column_names]
    parts = [part if part not in NUMBERS else PART_PREFIX + part for part in table.parts]
    return (PROMPT_ORDER, *numbers, *parts)


def sort_samples(table: SampleTable, rows: pa.Table, wanted: Selection) -> pa.Table:
    """Returns rows in the wanted order; equal ones, and those without a value, in the order of the prompts."""
    if wanted.order == PROMPT_ORDER:
        return rows
    direction = "ascending" if wanted.ascending else "descending"
    first = (column_of(table, wanted.order), direction)
    return rows.sort_by([first, ("prompt_ordinal", "ascending"), ("sample", "ascending")])


def _holds(table: SampleTable, condition: str) -> pa.ChunkedArray:
    parsed = CONDITION.fullmatch(condition)
    if parsed is None or not parsed[3]:
        raise InvalidQuery(
            f"condition {condition!r:.80}: expected NAME OPERATOR VALUE, such as reward >= 0.5 or finish = length"
        )
    name = parsed[1]
    compare = parsed[2]
    value = parsed[3]
    if name in FLAGS:
        return OPERATORS[_only_equal(condition, compare)](table.rows[name], _flag(condition, value))
    if name in TEXTS:
        return OPERATORS[_only_equal(condition, compare)](table.rows[name], value)
    try:
        column = column_of(table, name)
    except InvalidQuery:
        known = ", ".join((*orders_of(table), *FLAGS, *TEXTS))
        raise InvalidQuery(f"condition {condition!r:.80}: {name!r:.60} is unknown; expected one of {known}") from None
    try:
        number = float(value)
    except ValueError:
        raise InvalidQuery(f"condition {condition!r:.80}: {value!r:.60} is not a number") from None
    return OPERATORS[compare](pc.cast(table.rows[column], pa.float64()), number)


def _only_equal(condition: str, compare: str) -> str:
    if compare not in ("=", "!="):
        raise InvalidQuery(f"condition {condition!r:.80}: expected = or !=, since its value is not a number")
    return compare


def _flag(condition: str, value: str) -> bool:
    if value.lower() not in BOOLEANS:
        raise InvalidQuery(f"condition {condition!r:.80}: expected yes or no")
    return BOOLEANS[value.lower()]


def _containing(place: IterationExperience, text: str, count: int) -> pa.ChunkedArray:
    """Returns which samples contain the text, reading a few rows at a time."""
    found: list[pa.Array] = []
    for shard in place.shards:
        if sum(map(len, found)) >= count:
            break
        with opened(place.folder, shard) as file:
            found += [_hits(batch, text) for batch in _texts(file)]
    return pa.chunked_array(found, pa.bool_()).slice(0, count)


def _texts(file: pq.ParquetFile) -> Sequence[pa.RecordBatch]:
    batches: Sequence[pa.RecordBatch] = file.iter_batches(
        batch_size=BATCH, columns=["prompt", "response"], use_threads=False
    )
    return batches


def _hits(batch: pa.RecordBatch, text: str) -> pa.Array:
    return pc.or_(*(pc.match_substring(batch[name], text, ignore_case=True) for name in ("prompt", "response")))
