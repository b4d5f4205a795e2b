"""A revision of the spec in the outbox: trackers hear of it after they have created the run."""

from __future__ import annotations

import sqlite3

from flows.branching.branches import revise
from flows.run.creation import create_run
from flows.run.home import Home
from tests.ops.seeding import toy_spec


def test_a_run_that_was_never_driven_is_created_in_its_trackers_before_its_revision(tmp_path) -> None:
    home = Home(tmp_path / "runs")
    run = create_run(home, toy_spec())
    revise(home, run, ["iterations=9"])
    with sqlite3.connect(home.folder / "ledger.db") as connection:
        kinds = [kind for (kind,) in connection.execute("SELECT kind FROM metric_outbox ORDER BY rowid")]
    assert kinds[0] == "run" and len(kinds) > 5, kinds
