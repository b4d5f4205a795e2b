"""The samples of an iteration, searched, sorted and paged, and comparisons of two iterations.

Consumes the sealed shards that the ledger names (Parquet); produces `Rollouts` and `RolloutComparison`. The amount read is
bounded: small columns first, then only the texts of the samples shown, cut to a maximum length. Each file is verified against
the ledger's digests before it is first parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from db.ledger import Ledger
from db.write.records import ShardRow
from flows.run.home import Home
from ops.queries.run_list import find_line
from yatt_core.digests import file_sha256
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND
from yatt_core.experience.table import PART_PREFIX
from yatt_core.manifests import load_manifest

SAMPLES = 100_000
"""Maximum number of samples of an iteration that are examined."""
CHARACTERS = 100_000
"""Maximum number of characters returned from a text."""
BATCH = 256
BINS = 20
PROMPTS = 50
"""Maximum number of shared prompts in a comparison."""
KEYS = ("prompt_ordinal", "sample", "prompt_id", "reward", "correct", "truncated")
TEXTS = ("source", "prompt", "response", "finish", "weight_version", "reward_error")
OPTIONAL = ("turns", "tool_error")


class Order(StrEnum):
    """Sort orders of samples; `LENGTH` puts the longest response first, in characters."""

    PROMPT = "prompt"
    BEST = "best"
    WORST = "worst"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SampleView:
    """A sample.

    characters: length of the whole response.
    prompt_cut, response_cut: True if the text was cut.
    """

    prompt_ordinal: int
    sample: int
    prompt_id: str
    source: int
    prompt: str
    prompt_cut: bool
    response: str
    response_cut: bool
    characters: int
    finish: str
    truncated: bool
    correct: bool
    reward: float
    rewards: Mapping[str, float]
    reward_error: str | None
    turns: int | None
    tool_error: str | None
    weight_version: int


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A page of an iteration's samples.

    total: number of samples in the iteration.
    seen: number of samples examined.
    matching: number of examined samples that match the search.
    """

    run: str
    branch: int
    iteration: int
    committed: bool
    total: int
    seen: int
    matching: int
    offset: int
    samples: tuple[SampleView, ...]


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """Statistics of the rewards of an iteration's samples.

    counts: number of samples between each two adjacent edges of the comparison.
    """

    iteration: int
    samples: int
    mean: float
    deviation: float
    correct_fraction: float
    truncated_fraction: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """A prompt that both iterations sampled, with its mean reward in each."""

    prompt_id: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class RolloutComparison:
    """A comparison of two iterations of a run.

    prompts: prompts that both iterations sampled, largest change first.
    """

    run: str
    edges: tuple[float, ...]
    before: RewardSummary
    after: RewardSummary
    prompts: tuple[SharedPrompt, ...]


@dataclass(frozen=True, slots=True)
class _Iteration:
    """The location of an iteration's shards."""

    branch: int
    committed: bool
    folder: Path
    shards: tuple[ShardRow, ...]


def rollouts(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int,
    text: str = "",
    prompt: int | None = None,
    order: Order = Order.PROMPT,
    limit: int = 20,
    offset: int = 0,
    characters: int = 2_000,
) -> Rollouts:
    """Returns samples of an iteration along the current line, even if it is still in progress.

    text: text that the prompt or the response must contain, ignoring case.
    prompt: ordinal of the prompt.

    Raises `RunNotFound`; `ConfigurationError` if no experience of the iteration is recorded; `DataError` if a file does not
    match its recorded digest.
    """
    place = _iteration(ledger, home, run, iteration)
    table = _keys(place, text.strip(), order is Order.LENGTH)
    seen = table.num_rows
    if prompt is not None:
        table = table.filter(pc.equal(table["prompt_ordinal"], prompt))
    table = table.filter(table["wanted"])
    chosen = _sorted(table, order).slice(offset, limit)
    return Rollouts(
        run=run,
        branch=place.branch,
        iteration=iteration,
        committed=place.committed,
        total=sum(row.samples for row in place.shards),
        seen=seen,
        matching=table.num_rows,
        offset=offset,
        samples=tuple(_views(place, chosen, min(characters, CHARACTERS))),
    )


def compare_rollouts(ledger: Ledger, home: Home, run: str, before: int, after: int) -> RolloutComparison:
    """Compares two iterations. Raises what `rollouts` raises."""
    tables = [_keys(_iteration(ledger, home, run, iteration), "", False) for iteration in (before, after)]
    rewards = [table["reward"].to_numpy() for table in tables]
    both = np.concatenate(rewards)
    edges = np.histogram_bin_edges(both[np.isfinite(both)], bins=BINS)
    left, right = (
        _summary(number, table, values, edges)
        for number, table, values in zip((before, after), tables, rewards, strict=True)
    )
    return RolloutComparison(run, tuple(float(edge) for edge in edges), left, right, _shared(*tables))


def _summary(iteration: int, table: pa.Table, rewards: Any, edges: Any) -> RewardSummary:
    finite = rewards[np.isfinite(rewards)]
    return RewardSummary(
        iteration=iteration,
        samples=table.num_rows,
        mean=float(finite.mean()) if len(finite) else 0.0,
        deviation=float(finite.std()) if len(finite) else 0.0,
        correct_fraction=float(table["correct"].to_numpy().mean()) if table.num_rows else 0.0,
        truncated_fraction=float(table["truncated"].to_numpy().mean()) if table.num_rows else 0.0,
        counts=tuple(int(count) for count in np.histogram(finite, edges)[0]),
    )


def _shared(before: pa.Table, after: pa.Table) -> tuple[SharedPrompt, ...]:
    means = [table.group_by("prompt_id").aggregate([("reward", "mean")]) for table in (before, after)]
    left, right = (
        dict(zip(table["prompt_id"].to_pylist(), table["reward_mean"].to_pylist(), strict=True)) for table in means
    )
    shared = [SharedPrompt(name, left[name], right[name]) for name in left.keys() & right.keys()]
    shared.sort(key=lambda row: (-abs(row.after - row.before), row.prompt_id))
    return tuple(shared[:PROMPTS])


def _iteration(ledger: Ledger, home: Home, run: str, iteration: int) -> _Iteration:
    """Finds the iteration's shards along the current line."""
    line = find_line(ledger, run)
    owner, branch, committed = ledger.commits.maker(run, iteration)
    shards = ledger.records.shards(owner, branch, iteration)
    if not shards:
        raise ConfigurationError(
            f"run {run}: no experience of iteration {iteration} is recorded; the newest commit is {line.iteration}"
        )
    return _Iteration(branch, committed, home.run_folder(owner), tuple(shards))


def _keys(place: _Iteration, text: str, lengths: bool) -> pa.Table:
    """Returns for each sample its small columns, shard, row, whether it matches and, if requested, response length."""
    parts, rows = [], 0
    for number, shard in enumerate(place.shards):
        if rows >= SAMPLES:
            break
        with _opened(place.folder, shard) as file:
            part = file.read(columns=list(KEYS))
            found = _scanned(file, text, lengths)
        part = part.append_column("shard", pa.array([number] * part.num_rows, pa.int32()))
        part = part.append_column("row", pa.array(range(part.num_rows), pa.int32()))
        part = part.append_column("wanted", found["wanted"] if text else pa.array([True] * part.num_rows, pa.bool_()))
        part = part.append_column("length", found["length"] if lengths else pa.array([0] * part.num_rows, pa.int64()))
        parts.append(part)
        rows += part.num_rows
    return pa.concat_tables(parts).slice(0, SAMPLES)


def _scanned(file: pq.ParquetFile, text: str, lengths: bool) -> dict[str, pa.ChunkedArray]:
    """Returns which samples contain the text and how long their responses are, reading a few rows at a time."""
    wanted, length = [], []
    if text or lengths:
        for batch in file.iter_batches(batch_size=BATCH, columns=["prompt", "response"], use_threads=False):
            if text:
                hits = [pc.match_substring(batch[name], text, ignore_case=True) for name in ("prompt", "response")]
                wanted.append(pc.or_(*hits))
            if lengths:
                length.append(pc.cast(pc.utf8_length(batch["response"]), pa.int64()))
    return {
        "wanted": pa.chunked_array(wanted, pa.bool_()),
        "length": pa.chunked_array(length, pa.int64()),
    }


def _sorted(table: pa.Table, order: Order) -> pa.Table:
    first = {
        Order.PROMPT: (),
        Order.BEST: (("reward", "descending"),),
        Order.WORST: (("reward", "ascending"),),
        Order.LENGTH: (("length", "descending"),),
    }[order]
    return table.sort_by([*first, ("prompt_ordinal", "ascending"), ("sample", "ascending")])


def _views(place: _Iteration, chosen: pa.Table, characters: int) -> Iterator[SampleView]:
    """Yields the chosen samples with their texts, in order."""
    places = list(zip(chosen["shard"].to_pylist(), chosen["row"].to_pylist(), strict=True))
    rows: dict[tuple[int, int], Mapping[str, Any]] = {}
    for number in dict.fromkeys(shard for shard, _ in places):
        wanted = sorted(row for shard, row in places if shard == number)
        with _opened(place.folder, place.shards[number]) as file:
            for row, values in zip(wanted, _taken(file, wanted), strict=True):
                rows[number, row] = values
    for key, at in zip(chosen.select(list(KEYS)).to_pylist(), places, strict=True):
        yield _view(key, rows[at], characters)


def _taken(file: pq.ParquetFile, rows: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yields the given rows of a file, in order, with all displayed columns."""
    names = file.schema_arrow.names
    columns = [name for name in names if name in (*TEXTS, *OPTIONAL) or name.startswith(PART_PREFIX)]
    start, left = 0, list(rows)
    for batch in file.iter_batches(batch_size=BATCH, columns=columns, use_threads=False):
        here = [row - start for row in left if row < start + batch.num_rows]
        yield from batch.take(pa.array(here, pa.int32())).to_pylist()
        start, left = start + batch.num_rows, left[len(here) :]
        if not left:
            return


def _view(key: Mapping[str, Any], row: Mapping[str, Any], characters: int) -> SampleView:
    return SampleView(
        **key,
        source=row["source"],
        prompt=row["prompt"][:characters],
        prompt_cut=len(row["prompt"]) > characters,
        response=row["response"][:characters],
        response_cut=len(row["response"]) > characters,
        characters=len(row["response"]),
        finish=row["finish"],
        rewards={name.removeprefix(PART_PREFIX): row[name] for name in row if name.startswith(PART_PREFIX)},
        reward_error=row["reward_error"],
        turns=row.get("turns"),
        tool_error=row.get("tool_error"),
        weight_version=row["weight_version"],
    )


def _opened(folder: Path, shard: ShardRow) -> pq.ParquetFile:
    """Opens a shard's samples. Raises `DataError` if the folder is missing or does not match the ledger."""
    path = folder / shard.folder
    if not path.exists():
        raise DataError(f"{path}: not on this machine; unless the files were pruned, `yatt rollouts` fetches them")
    entry = load_manifest(path, SHARD_KIND, shard.manifest_sha256).files.get(SAMPLES_FILE)
    file = path / SAMPLES_FILE
    if entry is None or not file.is_file() or file.is_symlink():
        raise DataError(f"{file}: does not match its manifest")
    found = file.stat()
    if found.st_size != entry.size or _sha256(file, found.st_size, found.st_mtime_ns) != entry.sha256:
        raise DataError(f"{file}: does not match its manifest")
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None


@lru_cache(maxsize=4096)
def _sha256(file: Path, size: int, modified_ns: int) -> str:
    """Returns the digest of a file, cached until the file changes, since an iteration is read many times."""
    return file_sha256(file)
