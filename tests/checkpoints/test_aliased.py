"""A checkpoint with an alias survives the pruning of those around it until the alias moves on."""

from __future__ import annotations

from pathlib import Path

from db.write.aliases import CheckpointKey
from flows.run.home import Home
from tests.checkpoints.test_keeper import Bench


def promote(bench: Bench, iteration: int) -> None:
    bench.ledger.aliases.promote(bench.run, "candidate", CheckpointKey(0, iteration, bench.fence.term), "ann", "why")


def test_a_promoted_checkpoint_stays_until_its_alias_moves_on(tmp_path: Path) -> None:
    bench = Bench(Home(tmp_path / "runs"))
    assert bench.spec.checkpoints.keep == 2
    for iteration in range(6):
        bench.commit(iteration)
        bench.checkpoint(iteration)
        if iteration == 1:
            promote(bench, 1)
    assert bench.kept() == [0, 1, 4, 5] and len(bench.folders()) == 4
    promote(bench, 5)
    bench.commit(6)
    bench.checkpoint(6)
    assert bench.kept() == [0, 5, 6] and len(bench.folders()) == 3
    rows = [row.payload for row in bench.ledger.outbox.claim(bench.fence) if row.kind == "checkpoint"]
    assert sorted(row["iteration"] for row in rows if row["state"] == "kept") == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(row["iteration"] for row in rows if row["state"] == "pruned") == [1, 2, 3, 4]
    bench.ledger.close()
