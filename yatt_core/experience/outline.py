"""Batches of which a rank holds the tokens of some samples, and knows an outline of all.

Consumes tables of samples without texts. Produces their outlines, which are small beside their tokens: what a plan, an
advantage or a metric of the whole batch needs. From the outlines of all samples comes a batch without tokens, and with the
rows of some samples a batch that holds these. Such a batch has the shape of the whole one, so that an index of a sample or
of a token means the same everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from yatt_core.experience.batch import ExperienceBatch, sample_arrays
from yatt_core.experience.table import SUPPORT_SIZES, SUPPORT_TOKENS, TEACHER_PROMPT
from yatt_core.wire.columns import fixed_column, ragged_column
from yatt_core.wire.ragged import Array, offsets_of, ragged_positions
from yatt_core.wire.support import Support

Int64 = npt.NDArray[np.int64]

ABSENT = -1
"""Stands for a token that is not here; no vocabulary has it."""
MISSING = -1
"""Index of a sample that a batch does not have."""
TOKEN_LISTS = ("prompt_tokens", "response_tokens", "log_probs_sampler", TEACHER_PROMPT, SUPPORT_TOKENS, SUPPORT_SIZES)
"""Columns of tokens, and of what belongs to single tokens, that a rank needs of its own samples only."""
_KEYS = ("prompt_ordinal", "sample")
_LENGTH_OF = "length of "


def outline_of(table: pa.Table) -> pa.Table:
    """Returns all columns of samples but their token lists, and the lengths of these.

    Which response tokens count stays, and the tokens' rewards if there are any.
    """
    columns = {name: table.column(name) for name in table.column_names if name not in TOKEN_LISTS}
    for name in _token_lists(table):
        columns[_LENGTH_OF + name] = pa.array(np.diff(ragged_column(table, name)[1]).astype(np.int32))
    return pa.table(columns)


def batch_of_outline(outline: pa.Table) -> ExperienceBatch:
    """Returns the batch of samples in canonical order, of which none is held."""
    prompts, responses = (_offsets(outline, name) for name in ("prompt_tokens", "response_tokens"))
    shown = _offsets(outline, TEACHER_PROMPT) if _LENGTH_OF + TEACHER_PROMPT in outline.column_names else None
    return ExperienceBatch(
        prompt_tokens=_absent(prompts),
        prompt_offsets=prompts,
        response_tokens=_absent(responses),
        response_offsets=responses,
        log_probs_sampler=np.full(responses[-1], np.nan, dtype=np.float32),
        teacher_prompt_tokens=None if shown is None else _absent(shown),
        teacher_prompt_offsets=shown,
        support=Support.none(int(responses[-1])) if _LENGTH_OF + SUPPORT_TOKENS in outline.column_names else None,
        held=np.zeros(outline.num_rows, dtype=np.bool_),
        **sample_arrays(outline),
    )


def rows_of(table: pa.Table, rows: Array, batch: ExperienceBatch) -> pa.Table:
    """Returns the token lists of some rows of a table that a batch has, with the keys of their samples.

    rows: [N], True for the rows that are taken.
    """
    names = set(_token_lists(table))
    if batch.support is None:
        names -= {SUPPORT_TOKENS, SUPPORT_SIZES}
    if batch.teacher_prompt_tokens is None:
        names -= {TEACHER_PROMPT}
    return table.select([*_KEYS, *sorted(names)]).filter(pa.array(rows))


def with_rows(batch: ExperienceBatch, rows: pa.Table) -> ExperienceBatch:
    """Returns a batch of an outline that holds the samples of these rows; writes into the batch's arrays.

    rows: of `rows_of`, in canonical order; all of them belong to the batch.
    """
    at = places_in(batch, rows)
    _fill(values=batch.prompt_tokens, offsets=batch.prompt_offsets, at=at, rows=rows, name="prompt_tokens")
    _fill(values=batch.response_tokens, offsets=batch.response_offsets, at=at, rows=rows, name="response_tokens")
    _fill(values=batch.log_probs_sampler, offsets=batch.response_offsets, at=at, rows=rows, name="log_probs_sampler")
    if batch.teacher_prompt_tokens is not None and batch.teacher_prompt_offsets is not None:
        _fill(
            values=batch.teacher_prompt_tokens,
            offsets=batch.teacher_prompt_offsets,
            at=at,
            rows=rows,
            name=TEACHER_PROMPT,
        )
    support = batch.support
    if support is not None:
        sizes = support.sizes.copy()
        _fill(values=sizes, offsets=batch.response_offsets, at=at, rows=rows, name=SUPPORT_SIZES)
        support = Support(ragged_column(rows, SUPPORT_TOKENS)[0].copy(), sizes)
    held = np.zeros(len(batch), dtype=np.bool_)
    held[at] = True
    return replace(batch, held=held, support=support)


def places_in(batch: ExperienceBatch, table: pa.Table) -> Int64:
    """Returns the index in the batch of each row's sample, [rows]; `MISSING` for a sample that the batch lacks."""
    ordinals, samples = (fixed_column(table, name).astype(np.int64) for name in _KEYS)
    found = np.full(len(ordinals), MISSING, dtype=np.int64)
    if not len(batch) or not len(ordinals):
        return found
    # The batch is in canonical order: so are these numbers, of which each sample has one.
    width = 1 + max(int(batch.samples.max()), int(samples.max()))
    numbers = batch.ordinals * width + batch.samples
    wanted = ordinals * width + samples
    at = np.minimum(np.searchsorted(numbers, wanted), len(batch) - 1)
    known = numbers[at] == wanted
    found[known] = at[known]
    return found


def _token_lists(table: pa.Table) -> list[str]:
    return [name for name in TOKEN_LISTS if name in table.column_names]


def _offsets(outline: pa.Table, name: str) -> Int64:
    return offsets_of(fixed_column(outline, _LENGTH_OF + name))


def _absent(offsets: Int64) -> npt.NDArray[np.int32]:
    return np.full(offsets[-1], ABSENT, dtype=np.int32)


def _fill(values: Array, offsets: Int64, at: Int64, rows: pa.Table, name: str) -> None:
    """Writes a column of rows to their samples' places in flat values."""
    values[ragged_positions(offsets, at)] = ragged_column(rows, name)[0]
