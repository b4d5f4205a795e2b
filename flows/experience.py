"""An iteration's sealed shards: made by the controllers, recorded as they come, and made again where a file was damaged.

A shard that the ledger names is not made again while its files agree with their digests. One that was damaged is made again
alone, from the same prompts, seeds and weights, and has to come out with the digests that the ledger recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from db.records import ShardRow
from flows.metrics import add_sums
from flows.segment import Segment
from flows.transport import book_transport
from yatt_core.data.prompts import Cursor, draw
from yatt_core.data.shard_log import damaged_shards
from yatt_core.data.telemetry import write_telemetry
from yatt_core.digests import experience_digest_of_iteration
from yatt_core.errors import InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.receipts import PromptRef, ShardReceipt, ShardRef, ShardTask


@dataclass(frozen=True, slots=True)
class Experience:
    """An iteration's sealed shards in canonical order, their summed statistics, and where the prompts' cursor then stands."""

    shards: tuple[ShardRow, ...]
    cursor: Cursor

    @property
    def references(self) -> tuple[ShardRef, ...]:
        """The shards as tasks name them."""
        return references_of(self.shards)

    @property
    def sums(self) -> dict[str, float]:
        """Additive statistics of all samples."""
        return add_sums([row.sums for row in self.shards])

    @property
    def digest(self) -> str:
        """The iteration's experience digest."""
        return experience_digest_of_iteration(b"".join(row.group_digests for row in self.shards))


def references_of(rows: Iterable[ShardRow]) -> tuple[ShardRef, ...]:
    """The shards as tasks name them."""
    return tuple(ShardRef(row.folder, row.manifest_sha256) for row in rows)


def gather(segment: Segment, iteration: int, cursor: Cursor) -> Experience:
    """All shards of an iteration: those on disk that are whole, the others made now with the weights before the iteration."""
    prompts, after = draw(segment.spec.data, segment.spec.seed, cursor, segment.spec.data.prompts_per_iteration)
    recorded = segment.ledger.records.shards(segment.run, segment.branch, iteration)
    rows = {row.shard: row for row in whole_shards(segment, recorded)}
    missing = [shard for shard in range(segment.spec.shards) if shard not in rows]
    damaged = {row.shard for row in recorded} - rows.keys()
    for row in _make(segment, segment.branch, iteration, prompts, missing):
        _record(segment, row, replaces=row.shard in damaged)
        rows[row.shard] = row
    return Experience(tuple(rows[shard] for shard in sorted(rows)), after)


def sealed_shards(segment: Segment, run: str, branch: int, iteration: int) -> tuple[ShardRef, ...]:
    """A committed iteration's shards, to be learnt from again; the trainer holds the weights before the iteration."""
    recorded = segment.ledger.records.shards(run, branch, iteration)
    whole = {row.shard: row for row in whole_shards(segment, recorded)}
    damaged = [row.shard for row in recorded if row.shard not in whole]
    if damaged:
        before = segment.ledger.commits.at(segment.run, iteration - 1)
        if before is None:
            raise InfrastructureError(f"run {segment.run}: iteration {iteration - 1} is not in the ledger")
        cursor = Cursor.from_json(before.state["cursor"])
        prompts, _ = draw(segment.spec.data, segment.spec.seed, cursor, segment.spec.data.prompts_per_iteration)
        segment.fleet.sync(iteration - 1)
        for row in _make(segment, branch, iteration, prompts, damaged):
            _record(segment, row, replaces=True)
            whole[row.shard] = row
    return references_of(whole[shard] for shard in sorted(whole))


def whole_shards(segment: Segment, rows: Sequence[ShardRow]) -> list[ShardRow]:
    """Those whose files are there and agree with their digests; each other one is said."""
    damaged = damaged_shards(segment.folder, rows)
    for row in rows:
        if row.shard in damaged:
            segment.observer.warned(f"{row.folder} is damaged; this shard alone is made again")
    return [row for row in rows if row.shard not in damaged]


def has_damage(segment: Segment, branch: int, iteration: int) -> bool:
    """True if a recorded shard of an iteration is missing or changed on disk."""
    rows = segment.ledger.records.shards(segment.run, branch, iteration)
    return len(whole_shards(segment, rows)) < len(rows)


def split_shards(references: Sequence[PromptRef], shards: int) -> list[tuple[PromptRef, ...]]:
    """Contiguous slices of the prompts, sizes differing by at most one."""
    bounds = [len(references) * i // shards for i in range(shards + 1)]
    return [tuple(references[bounds[i] : bounds[i + 1]]) for i in range(shards)]


def _make(
    segment: Segment, branch: int, iteration: int, prompts: Sequence[PromptRef], shards: Sequence[int]
) -> Iterable[ShardRow]:
    """Has shards made and yields their rows as manifests become durable; what took how long goes into a telemetry file."""
    parts = split_shards(prompts, segment.spec.shards)
    tasks = [
        ShardTask(
            WorkKey(segment.run, branch, iteration, "collect", shard=shard),
            segment.fence.epoch,
            parts[shard],
            iteration - 1,
        )
        for shard in shards
    ]
    telemetry = {}
    for receipt in segment.fleet.collect(tasks):
        telemetry[f"shard-{receipt.key.shard:04d}"] = dict(receipt.timing)
        book_transport(segment, receipt)
        yield _row(receipt)
    write_telemetry(segment.folder, branch, iteration, f"collect.e{segment.fence.epoch:04d}", telemetry)


def _record(segment: Segment, row: ShardRow, replaces: bool) -> None:
    if replaces:
        segment.ledger.records.replace_shard(segment.fence, row)
    else:
        segment.ledger.records.shard(segment.fence, row)


def _row(receipt: ShardReceipt) -> ShardRow:
    return ShardRow(
        branch=receipt.key.branch,
        iteration=receipt.key.iteration,
        wave=receipt.key.wave,
        shard=receipt.key.shard,
        epoch=receipt.epoch,
        folder=receipt.folder,
        manifest_sha256=receipt.manifest_sha256,
        samples=receipt.samples,
        tokens=receipt.tokens,
        group_digests=receipt.group_digests,
        sums=dict(receipt.sums),
        adopted=receipt.adopted,
    )
