"""The columns that `prepare` adds to an iteration's experience: advantages, values and log-probabilities.

The log-probabilities are under the weights of old policy, reference and teacher. Each trainer rank encodes its
samples; one rank gets the others' over the network, writes all of them as `rank-NN.parquet`, and publishes the folder,
manifest last. Nodes that do not share its disk get a copy. Readers get all samples in canonical order (prompt ordinal,
sample), or the rows of some of the files. These columns depend on the trainer's layout, so they are not part of the
experience digest; the sha256 digests of their files are in the receipt.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from yatt_core import durable
from yatt_core.errors import DataError
from yatt_core.experience.table import sort_samples
from yatt_core.keys import WorkKey, iteration_folder
from yatt_core.manifests import MANIFEST, entry_of_bytes, load_manifest, publish_manifest, read_file
from yatt_core.spent_time import DATA, spent
from yatt_core.wire.columns import fixed_column, list_array, ragged_column
from yatt_core.wire.ragged import Array, offsets_of
from yatt_core.wire.tables import parsing

PREPARED_KIND = "prepared"
SUFFIX = ".parquet"
UNLIKE_FILES = "the ranks' files have different columns"

_log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

TOKEN_COLUMNS = ("token_advantages", "values", "returns", "log_probs_old", "log_probs_ref", "log_probs_teacher")
WIDE_COLUMNS = ("teacher_tokens", "teacher_log_probs")
"""Columns with several numbers for each response token."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedColumns:
    """Columns for N samples with T response tokens in total; None for those that the algorithm does not need.

    ordinals, samples, advantages (one per sample): [N].
    response_offsets: [N + 1].
    token_advantages, log_probs_old, log_probs_ref, log_probs_teacher: [T].
    values, returns: [T], a critic's values before the update and their targets.
    teacher_tokens: [T, k] int32, the teachers' likeliest tokens; of no meaning where a token does not count.
    teacher_log_probs: [T, k + 1], their log-probabilities and that of all other tokens together.

    Sample i's values in the arrays of length T are at [offsets[i] : offsets[i + 1]].
    """

    ordinals: Int64
    samples: Int32
    advantages: Float64
    response_offsets: Int64
    token_advantages: Float32 | None = None
    values: Float32 | None = None
    returns: Float32 | None = None
    log_probs_old: Float32 | None = None
    log_probs_ref: Float32 | None = None
    log_probs_teacher: Float32 | None = None
    teacher_tokens: Int32 | None = None
    teacher_log_probs: Float32 | None = None


def prepared_folder(branch: int, iteration: int, term: int) -> str:
    """Returns the folder of an iteration's prepared columns written under one term, relative to the run folder."""
    return str(iteration_folder(branch, iteration) / f"prepared.t{term:04d}")


def rank_file(rank: int, suffix: str = SUFFIX) -> str:
    """Returns the name of a rank's file."""
    return f"rank-{rank:02d}{suffix}"


def encode_rank(columns: PreparedColumns) -> bytes:
    """Returns the contents of a rank's file."""
    sink = pa.BufferOutputStream()
    pq.write_table(_table_of(columns), sink, compression="zstd", use_dictionary=False)
    return bytes(sink.getvalue().to_pybytes())


@spent(DATA, "write prepared columns")
def publish_prepared(
    run_folder: Path,
    key: WorkKey,
    term: int,
    contents: Sequence[bytes],
    suffix: str = SUFFIX,
    others: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[str, dict[str, str]]:
    """Writes all ranks' files and publishes their folder; returns (folder, {file: sha256}) for the receipt.

    others: contents of further files by name.
    """
    folder = prepared_folder(key.branch, key.iteration, term)
    files = {rank_file(rank, suffix): data for rank, data in enumerate(contents)} | dict(others)
    _publish(run_folder / folder, {"key": asdict(key), "term": term}, files)
    return folder, {name: entry_of_bytes(data).sha256 for name, data in files.items()}


def write_prepared(
    run_folder: Path, key: WorkKey, term: int, by_rank: Sequence[PreparedColumns]
) -> tuple[str, dict[str, str]]:
    """Writes all ranks' columns and publishes them; returns (folder, {file: sha256}) for the receipt."""
    return publish_prepared(run_folder, key, term, [encode_rank(columns) for columns in by_rank])


def pack_prepared(run_folder: Path, folder: str, files: Mapping[str, str]) -> dict[str, bytes]:
    """Returns the contents of a published folder, for a node that lacks it. Raises as `read_prepared` does."""
    contents = _read_files(run_folder, folder, files)
    return dict(zip(sorted(files), contents, strict=True)) | {MANIFEST: (run_folder / folder / MANIFEST).read_bytes()}


def receive_prepared(run_folder: Path, folder: str, files: Mapping[str, str], packed: Mapping[str, bytes]) -> None:
    """Writes a folder that `pack_prepared` returned, unless it is there. Raises `DataError` if it does not match."""
    if (run_folder / folder / MANIFEST).exists() and prepared_is_whole(run_folder, folder, files):
        return
    fields = {name: value for name, value in json.loads(packed[MANIFEST]).items() if name in ("key", "term")}
    _publish(run_folder / folder, fields, {name: data for name, data in packed.items() if name != MANIFEST})
    _read_files(run_folder, folder, files)


def _publish(folder: Path, fields: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    durable.make_folder(folder)
    for name, data in files.items():
        durable.write_file(folder / name, data, named=False)  # with the manifest
    publish_manifest(folder, PREPARED_KIND, fields, {name: entry_of_bytes(data) for name, data in files.items()})


def prepared_is_whole(run_folder: Path, folder: str, files: Mapping[str, str]) -> bool:
    """Returns True if the folder still matches its receipt; otherwise logs the difference."""
    try:
        _read_files(run_folder, folder, files)
    except DataError as error:
        _log.warning("the prepared columns cannot be used and will be recomputed: %s", error)
        return False
    return True


@spent(DATA, "read prepared columns")
def read_prepared(run_folder: Path, folder: str, files: Mapping[str, str]) -> PreparedColumns:
    """Returns all ranks' columns in canonical order.

    files: name -> sha256, from the receipt.

    Raises `DataError` naming a file that is missing, changed or not in the receipt.
    """
    table, _ = read_prepared_table(run_folder, folder, files)
    return columns_of_table(sort_samples(table))


def read_prepared_table(
    run_folder: Path, folder: str, files: Mapping[str, str], names: Collection[str] | None = None
) -> tuple[pa.Table, int]:
    """Returns the rows of some of the receipt's files, one file after another, and the bytes read.

    names: the files, at least one; None for all.

    Raises as `read_prepared` does.
    """
    contents = _read_files(run_folder, folder, files, names)
    with parsing(run_folder / folder):
        tables = [pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False) for data in contents]
    if any(table.column_names != tables[0].column_names for table in tables):
        raise DataError(f"{run_folder / folder}: {UNLIKE_FILES}")
    return pa.concat_tables(tables).combine_chunks(), sum(map(len, contents))


@spent(DATA, "read prepared columns")
def read_prepared_files(run_folder: Path, folder: str, files: Mapping[str, str], names: Collection[str]) -> list[bytes]:
    """Returns the contents of some of the receipt's files, whatever they are. Raises as `read_prepared` does."""
    if unknown := sorted(set(names) - set(files)):
        raise DataError(f"{run_folder / folder}: the receipt names no {', '.join(unknown)}")
    return _read_files(run_folder, folder, files, names)


def sweep_prepared(run_folder: Path, branch: int, iteration: int, keep_folders: Collection[str]) -> list[str]:
    """Removes and returns an iteration's prepared folders that are not to be kept.

    Only for the driver that holds the lease.
    """
    relative = iteration_folder(branch, iteration)
    found = sorted(path.name for path in (run_folder / relative).glob("prepared.t*"))
    removed = [str(relative / name) for name in found if str(relative / name) not in keep_folders]
    for folder in removed:
        durable.remove_folder(run_folder / folder)
    return removed


def _read_files(
    run_folder: Path, folder: str, files: Mapping[str, str], names: Collection[str] | None = None
) -> list[bytes]:
    """Returns the verified bytes of the receipt's files, by name. names: those that are read; None for all."""
    manifest = load_manifest(run_folder / folder, PREPARED_KIND)
    named = {name: entry.sha256 for name, entry in manifest.files.items()}
    if not files or named != dict(files):
        raise DataError(
            f"{run_folder / folder / MANIFEST}: names the files {named}, but the receipt names {dict(files)}"
        )
    return [
        read_file(run_folder / folder, name, manifest.files[name]) for name in sorted(files if names is None else names)
    ]


def _table_of(columns: PreparedColumns) -> pa.Table:
    offsets = columns.response_offsets
    arrays: dict[str, Array | pa.Array] = {
        "prompt_ordinal": columns.ordinals,
        "sample": columns.samples,
        "advantage": columns.advantages,
        "response_length": np.diff(offsets),
    }
    for name in TOKEN_COLUMNS:
        values: Float32 | None = getattr(columns, name)
        if values is not None:
            if len(values) != offsets[-1]:
                raise DataError(f"{name} has {len(values)} tokens, but response_offsets end at {offsets[-1]}")
            arrays[name] = list_array(values.astype(np.float32, copy=False), offsets)
    for name in WIDE_COLUMNS:
        wide: Array | None = getattr(columns, name)
        if wide is not None:
            arrays[name] = list_array(wide.ravel(), offsets * wide.shape[1])
    return pa.table(arrays)


def columns_of_table(table: pa.Table) -> PreparedColumns:
    """Returns the columns of a table of prepared rows, in its order."""
    tokens = {name: ragged_column(table, name)[0].copy() for name in TOKEN_COLUMNS if name in table.column_names}
    wide = {name: _wide_column(table, name) for name in WIDE_COLUMNS if name in table.column_names}
    return PreparedColumns(
        ordinals=fixed_column(table, "prompt_ordinal").copy(),
        samples=fixed_column(table, "sample").copy(),
        advantages=fixed_column(table, "advantage").copy(),
        response_offsets=offsets_of(fixed_column(table, "response_length")),
        **tokens,
        **wide,
    )


def _wide_column(table: pa.Table, name: str) -> Array:
    """Returns a column with several numbers for each response token, [T, numbers]."""
    values = ragged_column(table, name)[0]
    tokens = int(fixed_column(table, "response_length").sum())
    return values.reshape(tokens, len(values) // max(tokens, 1)).copy()
