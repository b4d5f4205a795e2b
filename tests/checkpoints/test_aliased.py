"""What an alias points to outlives the pruning of the snapshots around it, until the alias moves on."""

from __future__ import annotations

from pathlib import Path

from db.write.aliases import SnapshotKey
from flows.run.home import Home
from tests.checkpoints.test_keeper import Bench


def promote(bench: Bench, iteration: int) -> None:
    bench.ledger.aliases.promote(bench.run, "candidate", SnapshotKey(0, iteration, bench.fence.epoch), "ann", "why")


def test_a_promoted_snapshot_stays_until_its_alias_moves_on(tmp_path: Path) -> None:
    bench = Bench(Home(tmp_path / "runs"))
    assert bench.spec.snapshots.keep == 2
    for iteration in range(6):
        bench.commit(iteration)
        bench.snapshot(iteration)
        if iteration == 1:
            promote(bench, 1)
    assert bench.kept() == [0, 1, 4, 5] and len(bench.folders()) == 4
    promote(bench, 5)
    bench.commit(6)
    bench.snapshot(6)
    assert bench.kept() == [0, 5, 6] and len(bench.folders()) == 3
    rows = [row.payload for row in bench.ledger.outbox.claim(bench.fence) if row.kind == "snapshot"]
    assert sorted(row["iteration"] for row in rows if row["state"] == "kept") == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(row["iteration"] for row in rows if row["state"] == "pruned") == [1, 2, 3, 4]
    bench.ledger.close()
