"""Damaged experience: only the damaged shard is regenerated, with the same samples, and that is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.tools import Driver, same_result

SMALL = ("virtual.yaml", "iterations=3", "checkpoints.every=100", "evaluation.every=0")


@pytest.mark.verify
def test_only_a_damaged_shard_is_regenerated(driver: Driver) -> None:
    """Holds for a committed iteration, which is replayed, and for the open one, which continues."""
    quiet, struck = (driver.create(*SMALL) for _ in range(2))
    driver.drive(quiet)
    driver.drive_until_killed(struck, "learn:3")
    driver.end_actors(struck)
    folder = driver.home.run_folder(struck)
    flip(folder / folder_of(driver, struck, 2, 1) / "samples.parquet")
    (folder / folder_of(driver, struck, 3, 3) / "samples.parquet").unlink()
    output = driver.drive(struck)
    assert same_result(driver.results(quiet), driver.results(struck)), output
    with driver.ledger() as ledger:
        made = [
            (link.body["iteration"], link.body["shard"]) for link in ledger.events.of_kind(struck, "shard_regenerated")
        ]
        assert made == [(2, 1), (3, 3)]
        assert ledger.events.verify(struck) is None
        shards = [row for iteration in (1, 2, 3) for row in ledger.records.shards(struck, 0, iteration)]
    assert [(row.iteration, row.shard) for row in shards if row.term > 1] == made


def folder_of(driver: Driver, run: str, iteration: int, shard: int) -> str:
    with driver.ledger() as ledger:
        return ledger.records.shards(run, 0, iteration)[shard].folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
