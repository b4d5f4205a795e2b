"""A pipeline in a real ledger, with simulated runs: killed anywhere, it does each job once and ends with one champion."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from db.core.errors import Fenced, LeaseHeld
from db.core.holder import this_process
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from db.write.approvals import ApprovalDecision
from db.write.pipelines import NewPipeline
from flows.pipelines.runner import PipelineRunner
from tests.flows.pipelines.support import JOBS, Plant
from tests.flows.soups.support import Killed, ask_on_the_way, drive_run

FEW = (3, 6, 42)
"""Moments in which it is killed in every test run: before a run is recorded, after it was driven, after the promotion."""
MOMENTS = 45
"""Moments of an undisturbed pipeline before it has ended."""
EVERY_MOMENT = [pytest.param(each, marks=[] if each in FEW else [pytest.mark.verify]) for each in range(1, MOMENTS + 1)]
WORK = ["drive sft-1", "export sft-1", "drive brew-1", "evaluate brew-1", "promote brew-1"]


def decide(plant: Plant, decision: str) -> int:
    with Ledger.open(plant.home.ledger) as ledger:
        (approval,) = ledger.approvals.list(only_open=True)
        return ledger.approvals.decide(approval.id, ApprovalDecision(decision, "ann", "looked at it", "api")).id


def champions(plant: Plant) -> list[tuple[str, int]]:
    with Ledger.open(plant.home.ledger) as ledger:
        aliases = {row.id: ledger.aliases.pointing(row.id) for row in ledger.runs.list()}
        assert all(ledger.events.verify(run) is None for run in aliases)
        return [(run, each["champion"].iteration) for run, each in aliases.items() if "champion" in each]


def until_it_stands(plant: Plant) -> tuple[str, str]:
    """Runs the pipeline again whenever it was killed."""
    while True:
        try:
            return plant.run()
        except Killed:
            plant.killed_at = -1


def test_a_pipeline_waits_for_its_approval_ends_with_one_champion_and_then_does_nothing(
    tmp_path: Path, inputs: Path
) -> None:
    plant = Plant.of(tmp_path / "plant", inputs)
    assert plant.run() == ("line-1", "waiting") and plant.run() == ("line-1", "waiting")
    assert plant.did == WORK[:-1] and champions(plant) == []
    decide(plant, "approved")
    assert plant.run() == ("line-1", "finished")
    assert plant.did == WORK and champions(plant) == [("brew-1", 3)]
    assert plant.run() == ("line-2", "finished")
    assert plant.did == WORK and {row.state for row in plant.jobs("line-2").values()} == {"skipped"}


@pytest.mark.parametrize("moment", EVERY_MOMENT)
def test_a_pipeline_that_was_killed_does_each_job_once(tmp_path: Path, inputs: Path, moment: int) -> None:
    plant = Plant.of(tmp_path / "plant", inputs)
    plant.killed_at = moment
    assert until_it_stands(plant) == ("line-1", "waiting")
    decide(plant, "approved")
    assert until_it_stands(plant) == ("line-1", "finished")
    assert champions(plant) == [("brew-1", 3)]
    with Ledger.open(plant.home.ledger) as ledger:
        assert sorted(row.id for row in ledger.runs.list()) == ["brew-1", "sft-1"]
        assert len(ledger.approvals.list()) == 1
    assert {name: row.state for name, row in plant.jobs("line-1").items()} == dict.fromkeys(JOBS, "done")


def test_only_what_reads_something_that_changed_is_done_again(tmp_path: Path, inputs: Path) -> None:
    jobs = {name: job for name, job in JOBS.items() if name in ("sft", "rlhf", "evaluation")}
    plant = Plant.of(tmp_path / "plant", inputs, jobs)
    plant.run()
    plant.did.clear()
    plant.write(jobs | {"rlhf": jobs["rlhf"] | {"set": [*jobs["rlhf"]["set"], "seed=1"]}})
    assert plant.run() == ("line-2", "finished")
    assert plant.did == ["drive brew-2", "evaluate brew-2"] and plant.jobs("line-2")["sft"].state == "skipped"


def test_a_run_that_could_never_have_its_devices_fails_its_job_alone(tmp_path: Path, inputs: Path) -> None:
    jobs = {name: {"kind": "train", "spec": "run.yaml", "set": [f"name={name}", "iterations=2"]} for name in ("a", "b")}
    plant = Plant.of(tmp_path / "plant", inputs, jobs)
    plant.too_large = ("a",)
    assert plant.run() == ("line-1", "failed") and plant.did == ["drive b-1"]
    rows = plant.jobs("line-1")
    assert (rows["a"].state, rows["b"].state) == ("failed", "done") and "devices each" in rows["a"].reason
    with Ledger.open(plant.home.ledger) as ledger:
        assert [row.id for row in ledger.runs.list()] == ["b-1"]
    plant.too_large = ()
    assert plant.run() == ("line-1", "finished") and plant.did == ["drive b-1", "drive a-1"]


@pytest.mark.parametrize(
    ("gate", "said"),
    [({"at_least": {"accuracy": 0.9}}, "accuracy is 0.75"), ({"at_least": {"acuracy": 0.1}}, "no figure 'acuracy'")],
)
def test_a_gate_that_is_not_passed_fails_the_pipeline_and_holds_up_the_promotion(
    tmp_path: Path, inputs: Path, gate: dict[str, Any], said: str
) -> None:
    plant = Plant.of(tmp_path / "plant", inputs, JOBS | {"gate": {"kind": "gate", "of": "evaluation"} | gate})
    assert plant.run() == ("line-1", "failed")
    assert said in plant.jobs("line-1")["gate"].reason and "champion" not in plant.jobs("line-1")


def test_a_rejection_is_final(tmp_path: Path, inputs: Path) -> None:
    plant = Plant.of(tmp_path / "plant", inputs)
    plant.run()
    decide(plant, "rejected")
    assert plant.run() == ("line-1", "failed") and plant.run() == ("line-1", "failed")
    assert champions(plant) == [] and "rejected by ann" in plant.jobs("line-1")["gate"].reason


def test_a_run_waits_at_its_gate_and_has_failed_if_another_question_is_open(tmp_path: Path, inputs: Path) -> None:
    plant = Plant.of(tmp_path / "plant", inputs, {"sft": JOBS["sft"]})
    failing = partial(ask_on_the_way, kind="promotion", pauses=False)
    for drive, state, said in [
        (failing, "failed", "run sft-1 is failed and has not begun (the disk is full)"),
        (ask_on_the_way, "waiting", "run sft-1 waits for approval 2"),
    ]:
        with mock.patch("tests.flows.pipelines.support.drive_run", drive):
            assert plant.run() == ("line-1", state)
        assert plant.jobs("line-1")["sft"].reason == said


def test_a_run_that_was_killed_before_its_last_checkpoint_is_not_done(tmp_path: Path, inputs: Path) -> None:
    """An earlier checkpoint must not stand for the last one."""
    plant = Plant.of(tmp_path / "plant", inputs, {"sft": JOBS["sft"]})

    def dying(place: Plant, run: str, until: int) -> None:
        drive_run(place, run, until - 1)
        drive_run(place, run, until, killed=True)

    with mock.patch("tests.flows.pipelines.support.drive_run", dying):
        assert plant.run() == ("line-1", "failed")
    assert "at iteration 2 of 2, without its checkpoint" in plant.jobs("line-1")["sft"].reason
    assert plant.run() == ("line-1", "finished")
    assert plant.jobs("line-1")["sft"].outputs["iteration"] == 2


def test_runs_that_are_ready_together_are_driven_together(tmp_path: Path, inputs: Path) -> None:
    wide = JOBS["sft"] | {"set": ["name=wide", "iterations=3", "rollout.engine.instances=4"]}
    plant = Plant.of(tmp_path / "plant", inputs, {"sft": JOBS["sft"], "wide": wide})
    assert plant.run() == ("line-1", "finished")
    assert plant.did == ["drive sft-1", "drive wide-1"]
    assert [plant.jobs("line-1")[job].outputs["iteration"] for job in ("sft", "wide")] == [2, 3]


def test_a_file_that_cannot_be_read_fails_its_job(tmp_path: Path, inputs: Path) -> None:
    plant = Plant.of(tmp_path / "plant", inputs, {"sft": JOBS["sft"]})
    with mock.patch("flows.pipelines.inputs._files", return_value=[Path("/proc/self/mem")]):
        assert plant.run() == ("line-1", "failed")
    with Ledger.open(plant.home.ledger) as ledger:
        said = "sft: /proc/self/mem: cannot be read: Input/output error"
        assert ledger.pipelines.find("line-1").reason == said
    assert plant.run() == ("line-1", "finished")


def test_a_finished_pipeline_that_is_resumed_keeps_its_end(tmp_path: Path, inputs: Path) -> None:
    plant = Plant.of(tmp_path / "plant", inputs, {"sft": JOBS["sft"]})
    plant.run()
    with Ledger.open(plant.home.ledger) as ledger:
        before = ledger.pipelines.find("line-1")
        assert PipelineRunner(plant.home, ledger, "line-1", plant.tools()).run() == "finished"
        assert ledger.pipelines.find("line-1") == before


def test_a_job_whose_checkpoint_was_pruned_is_done_again(tmp_path: Path, inputs: Path) -> None:
    plant = Plant.of(tmp_path / "plant", inputs, {"sft": JOBS["sft"]})
    plant.run()
    with Ledger.open(plant.home.ledger) as ledger:
        fence = ledger.leases.acquire("sft-1", this_process("driver"), 600)
        (row,) = ledger.records.checkpoints("sft-1")
        assert ledger.records.checkpoint_pruned(fence, row)
    assert plant.run() == ("line-2", "finished") and plant.did == ["drive sft-1", "drive sft-2"]
    assert plant.run() == ("line-3", "finished") and plant.jobs("line-3")["sft"].outputs["run"] == "sft-2"


def test_one_process_drives_a_pipeline_and_one_that_was_replaced_cannot_write(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.pipelines.create(NewPipeline("line", "digest", {}, "/", "ann"))
        held = ledger.leases.take(of_pipeline("line-1"), this_process("first"), 60)
        with pytest.raises(LeaseHeld):
            ledger.leases.take(of_pipeline("line-1"), this_process("second"), 60)
        ledger.leases.renew(held, 0)
        ledger.leases.take(of_pipeline("line-1"), this_process("second"), 60)
        with pytest.raises(Fenced):
            ledger.pipelines.release(held, "finished", "")
