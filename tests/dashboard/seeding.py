"""Difficult runs for pages to show: one with faults, and one in which every text tries to be markup."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.home import Home
from tests.ops.seeding import commit_of, seal_iteration, toy_spec

HOSTILE = "\"'></title></script><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}${7}"
NAME = HOSTILE.replace("/", "")
"""A run's name cannot contain a slash, since its folder has that name."""
RESPONSE = f"</pre>{HOSTILE}\u202e"


def shake(home: Home, run: str) -> None:
    """Fails a phase, rolls the run back and leaves it failed."""
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("a test"), 600)
        failed = ledger.phases.plan(fence, 0, 4, "collect")
        ledger.phases.dispatch(fence, failed)
        ledger.phases.fail(fence, failed, "infrastructure", "an actor was lost")
        ledger.alarms.record(fence, alarm("entropy", "entropy is 0.01 nats, less than 0.05"))
        ledger.runs.start_branch(fence, 1, "reward fell")
        ledger.runs.set_state(fence, "failed", "collect failed too often")
        ledger.leases.release(fence)


def alarm(rule: str, text: str) -> dict[str, Any]:
    """Returns an alarm with this text."""
    evidence = {"entropy": [0.5, 0.01]}
    return {
        "id": f"{rule}-3",
        "rule": rule,
        "branch": 0,
        "iteration": 3,
        "first": 2,
        "action": "rollback",
        "text": text,
        "evidence": evidence,
    }


def seed_hostile(home: Home) -> str:
    """Seeds a run in which every text tries to be markup."""
    spec = toy_spec()
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create(NAME, spec.model_dump(mode="json"), spec.digest, spec.iterations).id
        logs = home.run_folder(run) / "logs"
        logs.mkdir(parents=True)
        record = {"time": 1.0, "level": "error", "actor": HOSTILE, "phase": HOSTILE, "message": HOSTILE}
        (logs / "t0001.driver.jsonl").write_text(json.dumps(record) + "\n")
        fence = ledger.leases.acquire(run, this_process(HOSTILE), 600)
        ledger.leases.start_session(fence, "", HOSTILE)
        ledger.commits.commit(fence, commit_of(0))
        seal_iteration(home, ledger, fence, 1, hostile_texts)
        failed = ledger.phases.plan(fence, 0, 1, "learn")
        ledger.phases.dispatch(fence, failed)
        ledger.phases.fail(fence, failed, "infrastructure", HOSTILE)
        ledger.alarms.record(fence, alarm(HOSTILE, HOSTILE))
        ledger.runs.set_state(fence, "failed", HOSTILE)
    return run


def hostile_texts(table: pa.Table) -> pa.Table:
    for column, text in (("prompt", HOSTILE), ("response", RESPONSE), ("prompt_id", HOSTILE)):
        place = table.schema.get_field_index(column)
        table = table.set_column(place, table.schema.field(place), pa.array([text] * table.num_rows, pa.string()))
    return table
