"""An iteration's experience on disk: its shards, its advantages, and whether each sample was learned from.

Consumes the rows of the ledger and the files that they name. Produces an `IterationExperience`, verified Parquet files, and one
table per iteration of everything about its samples except the texts and tokens. Each file is verified against the ledger's
digests before it is first parsed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from db.ledger import Ledger
from db.write.records import ShardRow
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.queries.run_list import find_line
from yatt_core.digests import file_sha256
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.admission import best_and_worst
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND
from yatt_core.experience.dynamic_sampling import WaveOutcome
from yatt_core.experience.prepared import PREPARED_KIND
from yatt_core.experience.slicing import SLICES
from yatt_core.experience.table import (
    PART_PREFIX,
    UNSCORED,
    experience_schema,
    group_offsets,
    is_scored,
    without_placeholders,
)
from yatt_core.manifests import load_manifest
from yatt_core.round_off import are_distinct
from yatt_core.spec import RunSpec

SAMPLES = 100_000
"""Maximum number of samples of an iteration that are examined."""
BATCH = 256
"""Number of samples whose texts or tokens are in memory at a time."""
COLUMNS = (
    *("prompt_ordinal", "sample", "prompt_id", "source", "reward", "correct", "truncated"),
    *("finish", "weight_version"),
)
NO_ADVANTAGES = "the advantages are not computed yet"


class Validity(StrEnum):
    """Whether the update learned from a sample, and if not, why.

    SURPLUS: the iteration had more valid groups than the update needs. MIDDLE: only the best and the worst samples of a
    group are kept. UNDECIDED: the wave that drew the prompt is still open. UNSCORED: a reward part failed on the sample, or
    its judge gave no score. WAITING: the prompt is complete, and a later iteration learns from it. THROWN_AWAY: the prompt was
    complete behind the iteration's end; it has gone on again, and is in another shard as it is learnt from.
    """

    USED = "used"
    EQUAL_REWARDS = "equal rewards"
    PADDING = "padding"
    SURPLUS = "surplus"
    MIDDLE = "middle"
    UNDECIDED = "undecided"
    UNSCORED = "no score"
    WAITING = "learnt later"
    THROWN_AWAY = "drawn behind the end"


@dataclass(frozen=True, slots=True)
class IterationExperience:
    """The location of an iteration's experience.

    owner: the run that made it.
    """

    run: str
    owner: str
    branch: int
    number: int
    committed: bool
    folder: Path
    shards: tuple[ShardRow, ...]

    @property
    def samples(self) -> int:
        """The number of its samples."""
        return sum(row.samples for row in self.shards)


@dataclass(frozen=True, slots=True)
class SampleTable:
    """What is known about an iteration's samples, one row each, without texts and tokens, by prompt and sample.

    rows: the columns of the experience that have one value per sample, null where it was not scored, and `tokens` (length of
        the response), `failed` (a reward function or a tool failed), `advantage` (null if unknown), `validity`, the sample's
        `shard` and `row`, and its `position` among all rows of all shards.
    parts: names of the reward parts.
    no_advantages: why there are no advantages; empty if there are.
    """

    rows: pa.Table
    parts: tuple[str, ...]
    no_advantages: str


def find_iteration(ledger: Ledger, home: Home, run: str, number: int) -> IterationExperience:
    """Finds an iteration's shards along the current line, even if the iteration is still in progress.

    Raises `RunNotFound`; `ConfigurationError` if no experience of the iteration is recorded.
    """
    line = find_line(ledger, run)
    owner, branch, committed = ledger.commits.maker(run, number)
    shards = ledger.records.shards(owner, branch, number)
    if not shards and not current_spec(ledger, run).samples_responses:
        raise ConfigurationError(
            f"run {run} samples no responses: it learns from the rows of its data, or a workload's own"
        )
    if not shards and not ledger.records.draws_nothing(owner, branch, number):
        raise ConfigurationError(
            f"run {run}: no experience of iteration {number} is recorded; the newest commit is {line.iteration}"
        )
    return IterationExperience(
        run=run,
        owner=owner,
        branch=branch,
        number=number,
        committed=committed,
        folder=home.run_folder(owner),
        shards=tuple(shards),
    )


def sample_table(ledger: Ledger, place: IterationExperience) -> SampleTable:
    """Returns everything about an iteration's samples, at most `SAMPLES`, with all samples of each prompt.

    Raises `DataError` for a damaged file.
    """
    parts = []
    count = 0
    for number, shard in enumerate(place.shards):
        if count >= SAMPLES:
            break
        with opened(place.folder, shard) as file:
            part = _columns(file)
        part = part.append_column("shard", pa.array(np.full(part.num_rows, number, np.int32)))
        part = part.append_column("row", pa.array(np.arange(part.num_rows, dtype=np.int32)))
        parts.append(part)
        count += part.num_rows
    read = pa.concat_tables(parts or [_no_columns(current_spec(ledger, place.run))])
    rows = _whole_groups(read.append_column("position", pa.array(np.arange(read.num_rows))))
    rows = rows.sort_by([("prompt_ordinal", "ascending"), ("sample", "ascending")]).combine_chunks()
    names = tuple(name.removeprefix(PART_PREFIX) for name in rows.column_names if name.startswith(PART_PREFIX))
    advantages, missing = _advantages(ledger, place, rows)
    rows = rows.append_column("advantage", advantages)
    rows = rows.append_column("validity", _validity(ledger, place, rows))
    return SampleTable(without_placeholders(rows), names, missing)


def _no_columns(spec: RunSpec) -> pa.Table:
    """Returns the columns of an iteration that has drawn nothing."""
    schema = experience_schema([part.name for part in spec.rewards.parts])
    names = [name for name in schema.names if name in COLUMNS or name.startswith(PART_PREFIX)]
    derived = {"tokens": pa.int64(), "failed": pa.bool_(), "shard": pa.int32(), "row": pa.int32()}
    return pa.schema([*(schema.field(name) for name in names), *derived.items()]).empty_table()


def _whole_groups(read: pa.Table) -> pa.Table:
    """Returns the first rows, at most `SAMPLES`, without the prompt of which some samples would be left out."""
    rows = read.slice(0, SAMPLES)
    left_out = read.slice(SAMPLES)
    whole = rows.filter(pc.invert(pc.is_in(rows["prompt_ordinal"], left_out["prompt_ordinal"].unique())))
    return whole if whole.num_rows else rows  # one prompt may have more samples than that


def opened(folder: Path, shard: ShardRow) -> pq.ParquetFile:
    """Opens a shard's samples. Raises `DataError` if the folder is missing or does not match the ledger."""
    path = folder / shard.folder
    if not path.exists():
        raise DataError(f"{path}: not on this machine; unless the files were pruned, `yatt rollouts` fetches them")
    entry = load_manifest(path, SHARD_KIND, shard.manifest_sha256).files.get(SAMPLES_FILE)
    if entry is None:
        raise DataError(f"{path / SAMPLES_FILE}: does not match its manifest")
    return verified(path / SAMPLES_FILE, entry.sha256)


def _columns(file: pq.ParquetFile) -> pa.Table:
    """Returns the columns with one value per sample, reading those of varying length a few rows at a time."""
    names = file.schema_arrow.names
    small = [name for name in names if name in (*COLUMNS, "turns", UNSCORED) or name.startswith(PART_PREFIX)]
    errors = [name for name in ("reward_error", "tool_error") if name in names]
    tokens = []
    failed = []
    for batch in file.iter_batches(batch_size=BATCH, columns=["loss_mask", *errors], use_threads=False):
        tokens.append(pc.cast(pc.list_value_length(batch["loss_mask"]), pa.int64()))
        found = [pc.is_valid(batch[name]) for name in errors]
        failed.append(found[0] if len(found) == 1 else pc.or_(*found))
    table = file.read(columns=small, use_threads=False)
    table = table.append_column("tokens", pa.chunked_array(tokens, pa.int64()))
    return table.append_column("failed", pa.chunked_array(failed, pa.bool_()))


def _advantages(ledger: Ledger, place: IterationExperience, rows: pa.Table) -> tuple[pa.Array, str]:
    """Returns the samples' advantages, null if unknown, and why all are; empty if some are known."""
    nothing = pa.nulls(rows.num_rows, pa.float64())
    done = ledger.phases.done(place.owner, place.branch, place.number, "prepare")
    if done is None or not done.receipt or "folder" not in done.receipt:
        return nothing, NO_ADVANTAGES
    folder = place.folder / done.receipt["folder"]
    if not folder.exists():
        return nothing, f"{folder}: the advantages are not on this machine"
    manifest = load_manifest(folder, PREPARED_KIND)
    columns = ["prompt_ordinal", "sample", "advantage"]
    tables = []
    for name, sha256 in sorted(done.receipt["files"].items()):
        if name not in manifest.files:
            raise DataError(f"{folder / name}: does not match its manifest")
        with verified(folder / name, sha256) as file:
            tables.append(file.read(columns=columns, use_threads=False))
    known = pa.concat_tables(tables)
    keys = _keys(known["prompt_ordinal"], known["sample"])
    order = np.argsort(keys, kind="stable")
    wanted = _keys(rows["prompt_ordinal"], rows["sample"])
    at = np.searchsorted(keys[order], wanted).clip(0, max(0, len(keys) - 1))
    found = keys[order][at] == wanted if len(keys) else np.zeros(len(wanted), dtype=np.bool_)
    values = known["advantage"].to_numpy()[order][at] if len(keys) else np.zeros(len(wanted))
    return pa.array(values, mask=~found, type=pa.float64()), ""


def _keys(ordinals: pa.ChunkedArray, samples: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns one number per sample that identifies it within a run."""
    joined: np.ndarray[tuple[int], np.dtype[np.int64]] = (ordinals.to_numpy().astype(np.int64) << 24) + (
        samples.to_numpy()
    )
    return joined


def _validity(ledger: Ledger, place: IterationExperience, rows: pa.Table) -> pa.Array:
    """Returns each sample's `Validity`.

    Without recorded waves, all samples of a committed iteration that have a score were used.
    """
    waves = ledger.records.waves(place.owner, place.branch, place.number)
    ordinals = rows["prompt_ordinal"].to_numpy()
    rewards = rows["reward"].to_numpy()
    scored = is_scored(rows)
    if not waves:
        known = str(Validity.USED if place.committed else Validity.UNDECIDED)
        return pa.array(np.where(scored, known, str(Validity.UNSCORED)), pa.string())
    outcomes = [WaveOutcome.from_json(wave.outcome) for wave in waves if wave.outcome is not None]
    admitted = {ordinal for outcome in outcomes for ordinal in outcome.admitted}
    padding = set(outcomes[-1].padding or ()) if outcomes else set()
    ends = [dict(wave.plan["cursor"])["ordinal"] + wave.plan["prompts"] for wave in waves if wave.outcome is not None]
    settled_before = max(ends, default=-1)
    keep = outcomes[-1].keep if outcomes else None
    sliced = any(SLICES in wave.plan for wave in waves)
    thrown = {ordinal for wave in waves for ordinal in (wave.outcome or {}).get(SLICES, {}).get("thrown", ())}
    found = np.full(len(ordinals), str(Validity.UNDECIDED), dtype=object)
    for start, stop in itertools.pairwise(group_offsets(ordinals).tolist()):
        ordinal = int(ordinals[start])
        group = rewards[start:stop]
        if ordinal >= settled_before:
            continue
        own = np.flatnonzero(scored[start:stop])
        found[start:stop] = str(_of_group(ordinal in admitted, ordinal in padding, group[own]))
        if sliced and ordinal not in admitted and ordinal not in padding:
            found[start:stop] = str(Validity.THROWN_AWAY if ordinal in thrown else Validity.WAITING)
        if ordinal in admitted and keep is not None:
            kept = own[best_and_worst(group[own], keep)]
            found[start + np.setdiff1d(own, kept)] = str(Validity.MIDDLE)
    found[~scored] = str(Validity.UNSCORED)
    return pa.array(found, pa.string())


def _of_group(admitted: bool, padding: bool, rewards: npt.NDArray[np.float64]) -> Validity:
    """Returns what became of a group. rewards: of its samples that have a score."""
    if admitted:
        return Validity.USED
    if padding:
        return Validity.PADDING
    if not len(rewards):
        return Validity.UNSCORED
    return Validity.SURPLUS if are_distinct(rewards.min(), rewards.max()) else Validity.EQUAL_REWARDS


def verified(file: Path, sha256: str) -> pq.ParquetFile:
    """Opens a file. Raises `DataError` if it does not match its recorded digest."""
    if not file.is_file() or file.is_symlink():
        raise DataError(f"{file}: does not match its manifest")
    found = file.stat()
    if _sha256(file, found.st_size, found.st_mtime_ns) != sha256:
        raise DataError(f"{file}: does not match its manifest")
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None


@lru_cache(maxsize=4096)
def _sha256(file: Path, size: int, modified_ns: int) -> str:
    """Returns the digest of a file, cached until the file changes, since an iteration is read many times."""
    return file_sha256(file)
