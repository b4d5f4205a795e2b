"""Runs for browsers to show, one of each kind.

The kinds: stopped with a checkpoint, driven, disturbed by a fault, with judges on its devices, and with hostile texts.
"""

from __future__ import annotations

from pathlib import Path

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.run.home import Home
from tests.dashboard.seeding import seed_hostile, shake
from tests.ops.seeding import seed_run, toy_spec
from tests.placement.recorded_run import judged_spec, record_run
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.keys import checkpoint_folder

STOPPED = "toy-1"
DRIVEN = "toy-2"
SHAKEN = "toy-3"
JUDGED = "judged-1"
WITH_CHECKPOINT = 2


def seed_runs(home: Home) -> str:
    """Creates all runs of this module; returns the name of the run with hostile texts."""
    hostile = seed_hostile(home)
    seed_run(home, committed=WITH_CHECKPOINT)
    take_checkpoint(home, STOPPED, WITH_CHECKPOINT)
    seed_run(home, committed=3, ends=False)
    seed_run(home, committed=3)
    shake(home, SHAKEN)
    record_run(home, judged_spec(), 4)
    return hostile


def take_checkpoint(home: Home, run: str, iteration: int) -> None:
    """Publishes a small checkpoint of an iteration and records it."""

    def write(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(bytes(range(256)) * 16)

    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("a test"), 600)
        folder = str(checkpoint_folder(0, iteration, fence.term))
        weights = f"weights {iteration}"
        identity = CheckpointIdentity(run, 0, iteration, fence.term, toy_spec().digest, weights, audit_head="a" * 64)
        receipt = publish_checkpoint(home.run_folder(run), folder, identity, write, 5000)
        row = CheckpointRow(run, 0, iteration, fence.term, folder, receipt.manifest_sha256, receipt.bytes, weights, 0.1)
        ledger.records.checkpoint(fence, row)
        ledger.leases.release(fence)
