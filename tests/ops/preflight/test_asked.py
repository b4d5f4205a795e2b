"""A fork that is asked for over HTTP is checked against the spec of the iteration at which it begins."""

from __future__ import annotations

import json

from db.ledger import Ledger
from flows.branching.branches import revise
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.preflight.apart import RunRequest
from ops.preflight.asked import answer_to
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec import override_spec

PARTS = [{"name": name, "function": "virtual_score"} for name in ("first", "second")]


def asked_fork(run: str, at: int, *overrides: str) -> RunRequest:
    return RunRequest(None, run, None, overrides, None, "ann", act="fork", at=at)


def test_a_fork_at_an_earlier_iteration_has_the_changes_of_that_iteration_s_spec(home: Home) -> None:
    spec = override_spec(toy_spec(), [f"rewards.parts={json.dumps(PARTS)}"], "toy")
    run = seed_run(home, committed=2, spec=spec)
    (home.run_folder(run) / INPUTS).mkdir()
    for iteration in range(3):
        seed_checkpoint(home, run, iteration)
    revise(home, run, [f"rewards.parts={json.dumps(PARTS[:1])}"], "ann")
    second = "rewards.parts.1.weight=0.25"
    made = answer_to(home, asked_fork(run, 1, second), lambda line: None)
    assert "error" not in made, made
    with Ledger.open(home.ledger) as ledger:
        assert current_spec(ledger, made["run"]).rewards.parts[1].weight == 0.25
    refused = answer_to(home, asked_fork(run, 9, second), lambda line: None)
    assert "iteration 9 is not committed" in refused["error"]
