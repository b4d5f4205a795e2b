"""A deployed pipeline on the real service group: changed data begin it, a kill and an approval in between, and it ends once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from db.write.pipelines import PipelineRow
from flows.run.home import Home
from tests.flows.group import SPEC, Group, running_group
from yatt_core.spec.reading.documents import yaml_text

pytestmark = [pytest.mark.verify, pytest.mark.timeout(1500)]
ITERATIONS = 12


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, service_environment: Mapping[str, str]) -> Iterator[Group]:
    home = tmp_path_factory.mktemp("group") / "runs"
    with running_group(home, service_environment) as group:
        yield group


def write_pipeline(folder: Path) -> Path:
    changes = [f"iterations={ITERATIONS}", "rollout.engine.base_seconds=0.2", "tracking.enabled=false"]
    jobs: dict[str, Any] = {
        "rlhf": {"kind": "train", "spec": str(SPEC), "set": changes},
        "evaluation": {"kind": "evaluate", "of": "rlhf"},
        "gate": {"kind": "gate", "of": "evaluation", "approval": {}},
        "champion": {"kind": "promote", "of": "rlhf", "needs": ["gate"]},
    }
    file = folder / "pipeline.yaml"
    triggers = [{"kind": "data", "path": "rows"}, {"kind": "schedule", "cron": "0 0 1 1 *"}]
    file.write_text(yaml_text({"name": "nightly", "jobs": jobs, "triggers": triggers}))
    return file


def rows_of(group: Group) -> list[PipelineRow]:
    with Ledger.open(Home(group.home).ledger, migrate=False) as ledger:
        return ledger.pipelines.newest()


def in_state(group: Group, state: str) -> bool:
    return [row.state for row in rows_of(group)] == [state]


def at_work(group: Group) -> int | None:
    """Returns the process of the check that drives the pipeline, once its run has committed something."""
    with Ledger.open(Home(group.home).ledger, migrate=False) as ledger:
        if not any(0 < run.iteration < ITERATIONS for run in ledger.runs.list()):
            return None
        (row,) = ledger.pipelines.newest()
    holder = row.holder or ""
    return int(holder.partition("pid ")[2].split()[0]) if "pid " in holder else None


def test_changed_data_begin_a_pipeline_that_a_kill_and_an_approval_do_not_end(group: Group, tmp_path: Path) -> None:
    file = write_pipeline(tmp_path)
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a.jsonl").write_text("1\n")
    told = group.yatt("pipeline", "deploy", str(file), "--every", "20s")
    assert told["deployment"] == "pipeline/nightly" and told["starts"][0].endswith("-01-01T00:00:00+00:00")
    looked = group.await_true("two checks", lambda: len(done := checks(group)) >= 2 and done)
    assert {each["state"]["message"] for each in looked} == {"nothing has changed"} and rows_of(group) == []

    (rows / "b.jsonl").write_text("2\n")
    os.kill(group.await_true("the pipeline at work", lambda: at_work(group)), signal.SIGKILL)
    group.await_true("the gate", lambda: in_state(group, "waiting"))
    shown = group.yatt("pipeline", "show", "nightly-1")
    assert len(shown["began_by"]) == 1 and f"data {rows} changed" in shown["began_by"][0]
    group.yatt("approve", "1", "--why", "good")
    group.await_true("its end", lambda: in_state(group, "finished"))
    after = len(checks(group))
    group.await_true("two more checks", lambda: len(checks(group)) >= after + 2)
    named = [each["state"] for each in group.flow_runs("nightly") if each["name"] == "nightly-1"]
    group.prefect("deployment", "delete", "pipeline/nightly")

    assert [row.id for row in rows_of(group)] == ["nightly-1"], "one change, one run"
    with Ledger.open(Home(group.home).ledger, migrate=False) as ledger:
        (run,) = ledger.runs.list()
        assert run.iteration == ITERATIONS and "champion" in ledger.aliases.pointing(run.id)
        assert {job.state for job in ledger.pipelines.jobs("nightly-1").values()} == {"done"}
    assert [state["type"] for state in named].count("CRASHED") == 1, "the one that was killed"
    assert (
        named[-1]["message"] == "pipeline nightly-1 goes on, since people have decided; pipeline nightly-1 is finished"
    )


def checks(group: Group) -> list[dict[str, Any]]:
    """Returns the checks that have ended."""
    return [each for each in group.flow_runs("nightly") if each["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED")]
