"""Deleting a run: all of its rows or none, a record that stays, and no second run under its name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from db.core.engine import Fence
from db.core.errors import DeletionRefused, Fenced, RunNotFound
from db.core.models import Base, DeletedRun
from db.ledger import Ledger
from db.write.aliases import CheckpointKey
from db.write.events import GENESIS, EventRow, _hash
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow, ChoiceRow, WaveRow
from db.write.runs import Parent
from tests.db.sweep import Steps
from tests.db.tools import commit_through, everything, holder


def use(ledger: Ledger, run: str, fence: Fence) -> None:
    """Leaves rows as a start that fails before its first commit does."""
    ledger.leases.start_session(fence, "flow", "session")
    attempt = ledger.phases.plan(fence, 0, 0, "sft")
    ledger.phases.dispatch(fence, attempt)
    ledger.phases.fail(fence, attempt, "data", "no such file")
    ledger.records.wave(fence, WaveRow(0, 1, 0, {}))
    ledger.records.choice(fence, ChoiceRow(0, 1, "skip", {}))
    creation = OutboxEntry(f"{run}/run", "run", {"experiment": "words", "name": run}, 5)
    ledger.outbox.enqueue(fence, [creation, OutboxEntry(f"{run}/params", "params", {}, 5)])
    ledger.outbox.claim(fence, limit=1)
    elsewhere = creation.to("wandb")
    ledger.outbox.enqueue(fence, [elsewhere])
    ledger.outbox.claim(fence, lane="wandb")
    ledger.outbox.delivered(fence, [elsewhere.id], f"words/{run}-0f")
    ledger.runs.set_state(fence, "failed", "no such file")


def rows_of(ledger: Ledger, run: str) -> list[str]:
    """Returns the tables that name a run in any of their columns, apart from the record of deletions."""
    with ledger._database.read() as connection:
        return [
            name
            for name, table in Base.metadata.tables.items()
            if name != DeletedRun.__tablename__
            and any(run in map(str, row) for row in connection.execute(select(table)))
        ]


@pytest.mark.postgresql
def test_a_deleted_run_leaves_its_record_and_nothing_else(ledger: Ledger, run: str, fence: Fence) -> None:
    other = ledger.runs.create("other", {}, "d", 1).id
    use(ledger, run, fence)
    use(ledger, other, ledger.leases.acquire(other, holder("other"), 10))
    of_other = {name: [row for row in rows if other in map(str, row)] for name, rows in everything(ledger).items()}
    assert len(rows_of(ledger, run)) >= 9
    kinds = (f"sweep/{run}", f"soup/{run}", f"suite/{run}/words", f"sweep/{other}", "home")
    for subject in kinds:
        ledger.leases.take(subject, holder("a command"), 10)
    made = ledger.deletions.delete(fence, "ann", "mistyped", {"owner": "o"})
    assert rows_of(ledger, run) == []
    assert sorted(str(row[0]) for row in everything(ledger)["lease"]) == ["home", f"run/{other}", f"sweep/{other}"]
    assert {
        name: [row for row in rows if other in map(str, row)] for name, rows in everything(ledger).items()
    } == of_other
    assert ledger.deletions.find(run) == made == ledger.deletions.list()[0]
    assert (made.by, made.why, made.spec, made.cleaned_at) == ("ann", "mistyped", {"seed": 0}, None)
    tracked = [{"tracker": "wandb", "name": "words/toy-1-0f"}]
    assert made.outside == {"owner": "o", "experiments": ["words"], "tracked": tracked}
    previous = GENESIS
    for link in made.links:  # the chain is whole, and its last link is the deletion
        assert link["prev_hash"] == previous
        previous = _hash(EventRow(**link))
        assert link["hash"] == previous
    assert made.links[-1]["kind"] == "deleted" and made.links[-1]["body"]["by"] == "ann"
    ledger.deletions.cleaned(run)
    cleaned = ledger.deletions.find(run)
    assert cleaned is not None and cleaned.cleaned_at is not None


def test_the_number_of_a_deleted_run_is_not_given_again(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.deletions.delete(fence, "ann", "", {})
    assert ledger.runs.create("toy", {}, "d", 1).id == "toy-2"
    for _ in range(8):
        ledger.runs.create("toy", {}, "d", 1)
    assert ledger.runs.find("toy-10").id == "toy-10"
    with pytest.raises(RunNotFound, match="'toy-1' was deleted by ann"):  # and is not the beginning of toy-10
        ledger.runs.find("toy-1")
    with pytest.raises(Fenced):
        ledger.leases.renew(fence, 10)


def test_a_run_that_has_begun_is_not_deleted(ledger: Ledger, run: str, fence: Fence) -> None:
    def refused(fence: Fence, says: str) -> None:
        before = everything(ledger)
        assert says in (ledger.deletions.obstacle(fence.run) or "")
        with pytest.raises(DeletionRefused, match=says):
            ledger.deletions.delete(fence, "ann", "", {})
        assert everything(ledger) == before

    def checkpoint(run: str, term: int) -> CheckpointRow:
        return CheckpointRow(run, 0, 0, term, "folder", "sha", 1, "weights", 0.1)

    assert ledger.deletions.obstacle(run) is None
    learnt = ledger.runs.create("learnt", {}, "d", 1).id
    second = ledger.leases.acquire(learnt, holder("second"), 10)
    ledger.records.checkpoint(second, checkpoint(learnt, 1))
    refused(second, "checkpoint of iteration 0")
    commit_through(ledger, fence, [0, 1])
    refused(fence, "iteration 1 is committed")
    fork = ledger.runs.create("toy", {}, "d", 9, parent=Parent(run, 0, 1)).id
    own = ledger.leases.acquire(fork, holder("third"), 10)
    ledger.records.checkpoint(own, checkpoint(fork, 0))  # a copy of the parent's
    assert ledger.deletions.obstacle(fork) is None, "a fork that was never driven"
    refused(fence, f"run {fork} is a fork of it")
    ledger.aliases.promote(fork, "champion", CheckpointKey(0, 0, 0), "ann", "best")
    refused(own, "alias champion")


def test_a_death_at_every_step_leaves_the_run_or_its_record(address: str | Path) -> None:
    """Each step of the transaction fails in turn, as if the process had died there: nothing is written by halves."""

    class Dies(Exception):
        pass

    def delete(ledger: Ledger, at: int, seen: list[str]) -> None:
        def reached(label: str) -> None:
            seen.append(label)
            if len(seen) == at:
                raise Dies

        fence = ledger.leases.acquire("toy-1", holder("rm"), 10, lambda _: True)
        with Steps(ledger, reached).doing("deletion"):
            ledger.deletions.delete(fence, "ann", "", {})

    with Ledger.open(address) as ledger:
        run = ledger.runs.create("toy", {"seed": 0}, "d", 1).id
        use(ledger, run, ledger.leases.acquire(run, holder("driver"), 10))
    at = 1
    gone = False
    while not gone:
        seen: list[str] = []
        with Ledger.open(address) as ledger:
            tables = rows_of(ledger, run)
            with suppress(Dies):
                delete(ledger, at, seen)
        with Ledger.open(address) as ledger:
            gone = ledger.deletions.find(run) is not None
            left: Any = rows_of(ledger, run)
        assert left == ([] if gone else tables), seen[-1]
        at += 1
    assert at > 20 and seen[-1].endswith("committed")
