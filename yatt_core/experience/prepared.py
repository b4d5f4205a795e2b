"""The columns that `prepare` adds to an iteration's experience: advantages, values and log-probabilities.

The log-probabilities are under the weights of old policy, reference and teacher. Each trainer rank writes its
samples to `rank-NN.parquet`; then one rank publishes the folder, manifest last. Readers get all samples in
canonical order (prompt ordinal, sample). These columns depend on the trainer's layout, so they are not part of
the experience digest; the sha256 digests of their files are in the receipt.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from yatt_core import durable
from yatt_core.errors import DataError
from yatt_core.experience.table import sort_samples
from yatt_core.keys import WorkKey, iteration_folder
from yatt_core.manifests import MANIFEST, entry_of_file, load_manifest, publish_manifest, read_file
from yatt_core.wire.columns import Array, fixed_column, list_array, offsets_of, ragged_column

PREPARED_KIND = "prepared"

_log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_TOKEN_COLUMNS = ("token_advantages", "values", "returns", "log_probs_old", "log_probs_ref", "log_probs_teacher")


@dataclass(frozen=True, slots=True, eq=False)
class PreparedColumns:
    """Columns for N samples with T response tokens in total; None for those that the algorithm does not need.

    ordinals, samples, advantages (one per sample): [N].
    response_offsets: [N + 1].
    token_advantages, log_probs_old, log_probs_ref, log_probs_teacher: [T].
    values, returns: [T], a critic's values before the update and their targets.

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


def prepared_folder(branch: int, iteration: int, term: int) -> str:
    """Returns the folder of an iteration's prepared columns written under one term, relative to the run folder."""
    return str(iteration_folder(branch, iteration) / f"prepared.t{term:04d}")


def rank_file(rank: int) -> str:
    """Returns the name of a rank's file."""
    return f"rank-{rank:02d}.parquet"


def write_rank(run_folder: Path, key: WorkKey, term: int, rank: int, columns: PreparedColumns) -> None:
    """Makes one rank's columns durable; they become valid when the folder is published."""
    folder = run_folder / prepared_folder(key.branch, key.iteration, term)
    durable.make_folder(folder)
    sink = pa.BufferOutputStream()
    pq.write_table(_table_of(columns), sink, compression="zstd", use_dictionary=False)
    durable.write_file(folder / rank_file(rank), sink.getvalue().to_pybytes())


def publish_prepared(run_folder: Path, key: WorkKey, term: int, ranks: int) -> tuple[str, dict[str, str]]:
    """Publishes the folder after every rank has written; returns (folder, {file: sha256}) for the receipt.

    Raises `DataError` if a rank's file is missing.
    """
    folder = prepared_folder(key.branch, key.iteration, term)
    try:
        files = {rank_file(rank): entry_of_file(run_folder / folder / rank_file(rank)) for rank in range(ranks)}
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    publish_manifest(run_folder / folder, PREPARED_KIND, {"key": asdict(key), "term": term}, files)
    return folder, {name: entry.sha256 for name, entry in files.items()}


def write_prepared(
    run_folder: Path, key: WorkKey, term: int, by_rank: Sequence[PreparedColumns]
) -> tuple[str, dict[str, str]]:
    """Writes all ranks' columns and publishes them; returns (folder, {file: sha256}) for the receipt."""
    for rank, columns in enumerate(by_rank):
        write_rank(run_folder, key, term, rank, columns)
    return publish_prepared(run_folder, key, term, len(by_rank))


def prepared_is_whole(run_folder: Path, folder: str, files: Mapping[str, str]) -> bool:
    """Returns True if the folder still matches its receipt; otherwise logs the difference."""
    try:
        _read_files(run_folder, folder, files)
    except DataError as error:
        _log.warning("the prepared columns cannot be used and will be recomputed: %s", error)
        return False
    return True


def read_prepared(run_folder: Path, folder: str, files: Mapping[str, str]) -> PreparedColumns:
    """Returns all ranks' columns in canonical order.

    files: name -> sha256, from the receipt.

    Raises `DataError` naming a file that is missing, changed or not in the receipt.
    """
    contents = _read_files(run_folder, folder, files)
    tables = [pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False) for data in contents]
    if any(table.column_names != tables[0].column_names for table in tables):
        raise DataError(f"{run_folder / folder}: the ranks' files have different columns")
    return _columns_of(sort_samples(pa.concat_tables(tables).combine_chunks()))


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


def _read_files(run_folder: Path, folder: str, files: Mapping[str, str]) -> list[bytes]:
    """Returns the verified bytes of the receipt's files, by name."""
    manifest = load_manifest(run_folder / folder, PREPARED_KIND)
    named = {name: entry.sha256 for name, entry in manifest.files.items()}
    if not files or named != dict(files):
        raise DataError(
            f"{run_folder / folder / MANIFEST}: names the files {named}, but the receipt names {dict(files)}"
        )
    return [read_file(run_folder / folder, name, manifest.files[name]) for name in sorted(files)]


def _table_of(columns: PreparedColumns) -> pa.Table:
    offsets = columns.response_offsets
    arrays: dict[str, Array | pa.Array] = {
        "prompt_ordinal": columns.ordinals,
        "sample": columns.samples,
        "advantage": columns.advantages,
        "response_length": np.diff(offsets),
    }
    for name in _TOKEN_COLUMNS:
        values: Float32 | None = getattr(columns, name)
        if values is not None:
            if len(values) != offsets[-1]:
                raise DataError(f"{name} has {len(values)} tokens, but response_offsets end at {offsets[-1]}")
            arrays[name] = list_array(values.astype(np.float32, copy=False), offsets)
    return pa.table(arrays)


def _columns_of(table: pa.Table) -> PreparedColumns:
    tokens = {name: ragged_column(table, name)[0].copy() for name in _TOKEN_COLUMNS if name in table.column_names}
    return PreparedColumns(
        ordinals=fixed_column(table, "prompt_ordinal").copy(),
        samples=fixed_column(table, "sample").copy(),
        advantages=fixed_column(table, "advantage").copy(),
        response_offsets=offsets_of(fixed_column(table, "response_length")),
        **tokens,
    )
