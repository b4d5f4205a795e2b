"""A process dies at each step of the ledger and the next one resumes the run; the result equals an undisturbed one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import select

from db.core.models import AttemptRow, ControlStateTable, Iteration, Outbox
from db.ledger import Ledger
from db.write.phases import DONE, FAILED
from tests.db.tools import assert_consistent

REPOSITORY = Path(__file__).parents[2]
LEASE_EVENTS = ("lease_taken", "lease_released")


def outcome(ledger: Ledger, run: str) -> dict[str, Any]:
    """Returns everything that a run produced, without the times, terms and names that have to differ."""
    iterations = [1]
    with ledger._database.read() as connection:

        def rows(*columns: Any, table: Any, order: Any) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in connection.execute(select(*columns).where(table.run == run).order_by(order))]

        kept = (Iteration.iteration, Iteration.experience_digest, Iteration.weights_digest, Iteration.fingerprint)
        outbox = rows(Outbox.id, Outbox.kind, Outbox.payload, Outbox.logged_at, table=Outbox, order=Outbox.seq)
        done = select(AttemptRow.phase, AttemptRow.receipt).where(AttemptRow.run == run, AttemptRow.state == DONE)
        facts: dict[str, Any] = {
            "iterations": rows(*kept, table=Iteration, order=Iteration.iteration),
            "control": rows(ControlStateTable.state, table=ControlStateTable, order=ControlStateTable.iteration),
            "outbox": [(row[0].removeprefix(run), *row[1:]) for row in outbox],
            "done": sorted((tuple(row) for row in connection.execute(done)), key=repr),
        }
    facts["shards"] = [
        (row.shard, row.folder, row.manifest_sha256) for i in iterations for row in ledger.records.shards(run, 0, i)
    ]
    facts["choices"] = [(name, row.body) for i in iterations for name, row in ledger.records.choices(run, 0, i).items()]
    facts["checkpoints"] = [(row.iteration, row.folder) for row in ledger.records.checkpoints(run)]
    facts["points"] = list(ledger.metrics.result_points(run))
    facts["counts"] = ledger.outbox.counts(run)
    facts["events"] = [link.kind for link in ledger.events.links(run) if link.kind not in LEASE_EVENTS]
    return facts


def test_deaths_at_every_step_do_not_change_the_result(address: str | Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.db.sweep", str(address), str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=800, check=True)
    report = json.loads(done.stdout)
    assert report["died"] == report["steps"], "a step was not reached by the process that should die there"
    assert len(report["steps"]) > 100
    assert {step.split()[-1] for step in report["steps"]} == {"statement", "COMMIT", "committed"}
    with Ledger.open(address) as ledger:
        assert outcome(ledger, "toy-2") == outcome(ledger, "toy-1")
        for run in ("toy-1", "toy-2"):
            assert_consistent(ledger, 2, run, outbox=4)
        rows = ledger.phases.attempts("toy-2", 0, 1)
        assert {row.state for row in rows} == {DONE, FAILED}
        between = [step for step in report["steps"] if step.split()[0] in ("shard", "choice", "finish")]
        charged = [row for row in rows if row.state == FAILED and row.dispatched_at is not None]
        assert len(charged) >= len(between) - 2, "a driver that died after a dispatch must be charged"
    lines = {name: (tmp_path / name).read_text().splitlines() for name in ("undisturbed", "swept")}
    assert set(lines["swept"]) == set(lines["undisturbed"])
    assert len(lines["undisturbed"]) == len(set(lines["undisturbed"]))
