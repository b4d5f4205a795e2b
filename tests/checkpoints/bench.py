"""A run with a driver but without actors, whose iterations and checkpoints a test makes one by one."""

from __future__ import annotations

from typing import Any

from db.core.engine import Fence
from db.core.holder import Holder
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.records import CheckpointRow
from flows.driver.checkpoints import CheckpointKeeper
from flows.run.home import Home
from tests.ops.audited import publish, weights
from tests.ops.seeding import seal_iteration, toy_spec
from yatt_core.actors.leftovers import Leftovers
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import open_store

SPEC = toy_spec(100)


class Trainer:
    """A trainer that publishes nothing itself: it returns the receipt, or raises the error, that a test sets."""

    def __init__(self) -> None:
        self.result: CheckpointReceipt | InfrastructureError | None = None

    def tidy(self, _: Leftovers) -> None: ...

    def checkpoint_result(self, _: float = 0.0) -> CheckpointReceipt | None:
        if isinstance(self.result, InfrastructureError):
            raise self.result
        return self.result


class Bench:
    """A run with a driver, whose iterations and checkpoints a test makes one by one."""

    def __init__(self, home: Home, spec: RunSpec = SPEC) -> None:
        home.folder.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.spec = spec
        self.ledger = Ledger.open(home.ledger)
        self.run = self.ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, 100).id
        self.folder = home.run_folder(self.run)
        self.folder.mkdir()
        self.trainer = Trainer()
        self.fence = self.take_over()
        self.branch = 0

    def take_over(self) -> Fence:
        """Acquires the lease for the next driver."""
        holder = Holder("here", "boot", 1, 1, "driver")
        self.fence = self.ledger.leases.acquire(self.run, holder, 600, holder_is_gone=lambda _: True)
        return self.fence

    def keeper(self) -> CheckpointKeeper:
        store = open_store(self.spec, self.folder)
        return CheckpointKeeper(self.ledger, self.fence, self.trainer, self.folder, self.spec, store)  # type: ignore[arg-type]

    def commit(self, *iterations: int, sealed: bool = False) -> None:
        for iteration in iterations:
            if sealed and iteration:
                seal_iteration(self.home, self.ledger, self.fence, iteration)
            digest = "x" if iteration else None
            row = IterationCommit(self.branch, iteration, {}, 1, digest, weights(iteration), trackers=())
            self.ledger.commits.commit(self.fence, row)

    def publish(self, iteration: int, **changes: Any) -> CheckpointRow:
        term = changes.pop("term", self.fence.term)
        digest = changes.pop("spec_digest", self.spec.digest)
        return publish(self.folder, self.ledger, self.run, iteration, digest, term, self.branch)

    def checkpoint(self, iteration: int) -> None:
        """Publishes a checkpoint and lets the keeper collect and record it, and prune."""
        keeper = self.keeper()
        keeper.attach(in_flight=True)
        row = self.publish(iteration)
        self.trainer.result = CheckpointReceipt(
            row.branch, iteration, row.term, row.folder, row.manifest_sha256, row.bytes, row.weights_digest, 0.1
        )
        assert keeper.collect()

    def roll_back(self, iteration: int) -> None:
        self.branch = self.ledger.runs.start_branch(self.fence, iteration, "a test")

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "checkpoints").iterdir())

    def kept(self) -> list[int]:
        return sorted(row.iteration for row in self.keeper().kept())
