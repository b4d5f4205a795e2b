"""Creates a small run in which everything agrees, so that a test can change one thing.

The run has real inputs, shards, checkpoints and MLflow points.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import RESULT, Metric
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow, ChoiceRow
from flows.delivery.outbox import deliver_pending
from flows.delivery.registry import published_entries
from flows.run.home import Home
from ops.integrations.mlflow_tracker import MlflowTracker
from tests.ops.seeding import seal_iteration, toy_spec
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.digests import experience_digest_of_iteration
from yatt_core.input_building.materialise import materialise
from yatt_core.keys import checkpoint_folder
from yatt_core.spec import RunSpec

COMMITTED = 3


def make_sound_run(home: Home, spec: RunSpec | None = None) -> str:
    """Creates iterations 0..3 and checkpoints of iterations 0 and 2; all but iteration 3 is delivered to MLflow."""
    spec = spec or toy_spec()
    home.folder.mkdir(parents=True)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, spec.iterations).id
        home.run_folder(run).mkdir()
        fence = ledger.leases.acquire(run, this_process("test"), 600)
        inputs = materialise(spec, home.run_folder(run))
        ledger.records.choice(
            fence, ChoiceRow(branch=0, iteration=0, name="inputs", body={"manifest_sha256": inputs.manifest_sha256})
        )
        ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/run", "run", {"experiment": "audit", "name": run}, 5)])
        for iteration in range(COMMITTED + 1):
            if iteration:
                seal_iteration(home, ledger, fence, iteration)
            if iteration == COMMITTED:
                deliver(home, ledger, fence)
            ledger.commits.commit(fence, _commit(ledger, run, iteration))
            if iteration in (0, 2):
                record_checkpoint(home.run_folder(run), ledger, fence, iteration, spec)
        ledger.leases.release(fence)
    return run


def advance(home: Home, ledger: Ledger, run: str, iteration: int) -> None:
    """Adds an iteration with a checkpoint, all delivered to MLflow."""
    fence = ledger.leases.acquire(run, this_process("test"), 600)
    seal_iteration(home, ledger, fence, iteration)
    ledger.commits.commit(fence, _commit(ledger, run, iteration))
    record_checkpoint(home.run_folder(run), ledger, fence, iteration, toy_spec())
    deliver(home, ledger, fence)
    ledger.leases.release(fence)


def deliver(home: Home, ledger: Ledger, fence: Fence) -> None:
    """Delivers all rows in the outbox."""
    while deliver_pending(ledger, fence, MlflowTracker(home.tracking_uri, home.artifacts)):
        pass


def _commit(ledger: Ledger, run: str, iteration: int) -> IterationCommit:
    shards = ledger.records.shards(run, 0, iteration)
    digest = experience_digest_of_iteration(b"".join(row.group_digests for row in shards)) if iteration else None
    return IterationCommit(
        branch=0,
        iteration=iteration,
        control_state={"iteration": iteration, "cursor": iteration},
        logged_at_ms=1000 + iteration,
        experience_digest=digest,
        weights_digest=weights(iteration),
        fingerprint={"loss": iteration / 10},
        metrics=[Metric("reward/mean", iteration / 10, RESULT), Metric("entropy", 2.0, RESULT)],
    )


def weights(iteration: int) -> str:
    """Returns the digest that stands in for an iteration's weights."""
    return f"{iteration:064d}"


def publish(
    folder: Path, ledger: Ledger, run: str, iteration: int, spec_digest: str, term: int = 1, branch: int = 0
) -> CheckpointRow:
    """Publishes a checkpoint, and returns the row for it."""

    def write(target: Path) -> None:
        save_file({"weight": np.full(8, iteration, dtype=np.float32)}, target / "weights.safetensors")

    head = ledger.events.head(run).hash
    identity = CheckpointIdentity(run, branch, iteration, term, spec_digest, weights(iteration), head)
    receipt = publish_checkpoint(folder, str(checkpoint_folder(branch, iteration, term)), identity, write, 1000)
    return CheckpointRow(
        run,
        branch,
        iteration,
        term,
        receipt.folder,
        receipt.manifest_sha256,
        receipt.bytes,
        receipt.weights_digest,
        0.1,
    )


def record_checkpoint(folder: Path, ledger: Ledger, fence: Fence, iteration: int, spec: RunSpec) -> None:
    """Publishes a checkpoint, writes its row, and queues its delivery to the tracker."""
    row = publish(folder, ledger, fence.run, iteration, spec.digest, fence.term)
    ledger.records.checkpoint(fence, row, published_entries(spec, row))
