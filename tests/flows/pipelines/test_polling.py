"""A deployed pipeline is polled in a real ledger: each kind of trigger begins one run, whoever polls and whoever is killed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from db.core.errors import PipelineNotFound
from db.core.holder import this_process
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from db.write.approvals import ApprovalDecision
from db.write.pipeline_triggers import PipelineTriggers
from db.write.pipelines import FAILED, FINISHED, NewPipeline
from db.write.runs import Runs
from flows.pipelines.polling import PollResult, deploy_pipeline, poll_pipeline
from ops.integrations.promotion import promote
from tests.flows.pipelines.conftest import inputs
from tests.flows.pipelines.support import JOBS, Plant
from tests.flows.soups.support import Killed, ask_on_the_way, drive_run
from yatt_core.errors import ConfigurationError

__all__ = ["inputs"]
START = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
DATA = {"kind": "data", "path": "rows"}


class Watched:
    """A deployed pipeline with a clock that stands still."""

    def __init__(self, plant: Plant, *triggers: dict[str, Any]) -> None:
        self.plant = plant
        self.now = START
        plant.write(plant_jobs(), triggers=list(triggers))
        self.folder = plant.file.parent
        self.rows = self.folder / "rows"
        self.rows.mkdir(exist_ok=True)
        (self.rows / "a.jsonl").write_text("1")
        plant.home.folder.mkdir(exist_ok=True)
        with Ledger.open(plant.home.ledger) as ledger:
            deploy_pipeline(ledger, plant.file, "ann", lambda: self.now)

    def poll(self) -> PollResult:
        with Ledger.open(self.plant.home.ledger) as ledger:
            return poll_pipeline(ledger, "line", lambda: self.now)

    def end(self, pipeline: str, state: str = FINISHED) -> None:
        with Ledger.open(self.plant.home.ledger) as ledger:
            fence = ledger.leases.take(of_pipeline(pipeline), this_process(), 60)
            ledger.pipelines.release(fence, state, "")

    def begins(self, said: str) -> None:
        """Expects that one poll begins a run, whose end leaves nothing to do."""
        found = self.poll()
        assert found.pipeline is not None and said in found.said
        assert self.poll().pipeline == found.pipeline, "it goes on until it has ended"
        self.end(found.pipeline)
        assert self.poll() == PollResult(None, "nothing has changed")


def plant_jobs() -> dict[str, Any]:
    return {"sft": JOBS["sft"]}


@pytest.fixture
def plant(tmp_path: Path, inputs: Path) -> Plant:
    return Plant.of(tmp_path / "plant", inputs)


def test_changed_data_begin_a_run_once(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    assert watched.poll().pipeline is None, "what was there when it was deployed begins nothing"
    (watched.rows / "b.jsonl").write_text("2")
    watched.begins(f"data {watched.rows} changed")
    os.utime(watched.rows / "b.jsonl", (1, 1))
    assert watched.poll().pipeline is None, "a new time is no change"
    (watched.rows / "b.jsonl").write_text("3")
    watched.begins(f"data {watched.rows} changed")
    (watched.rows / "b.jsonl").write_text("2")
    assert watched.poll().pipeline is None, "the same contents have begun a run before"
    for file in watched.rows.iterdir():
        file.unlink()
    watched.rows.rmdir()
    watched.begins(f"data {watched.rows} is gone")


def test_contents_are_read_only_if_sizes_or_times_have_changed(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    with mock.patch("flows.pipelines.conditions.path_digest") as digest:
        watched.poll()
        digest.assert_not_called()
        digest.return_value = "0" * 64
        os.utime(watched.rows / "a.jsonl", (1, 1))
        assert watched.poll().pipeline == "line-1"
        watched.poll()
        assert digest.call_count == 1


def test_data_that_are_being_written_are_left_for_the_next_poll(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    file = watched.rows / "a.jsonl"
    file.write_text("22")

    def written_meanwhile(path: Path) -> str:
        file.write_text("333")
        return "half"

    with mock.patch("flows.pipelines.conditions.path_digest", written_meanwhile):
        assert watched.poll().pipeline is None
    watched.begins("data")


@pytest.mark.parametrize(
    ("trigger", "first", "later"),
    [
        ({"cron": "0 22 * * *", "timezone": "Europe/Berlin"}, "2026-03-01 21:00:00", "2026-03-29 20:00:00"),
        ({"interval": "6h"}, "2026-03-01 18:00:00", "2026-03-30 18:00:00"),
        ({"interval": "1d", "timezone": "Europe/Berlin"}, "2026-03-01 23:00:00", "2026-03-29 22:00:00"),
    ],
)
def test_a_schedule_begins_a_run_and_missed_starts_count_as_one(
    plant: Plant, trigger: dict[str, str], first: str, later: str
) -> None:
    watched = Watched(plant, {"kind": "schedule", **trigger})
    watched.now = datetime.fromisoformat(f"{first}+00:00") - timedelta(seconds=1)
    assert watched.poll().pipeline is None
    watched.now += timedelta(seconds=30)
    watched.begins(f"{first} UTC")
    watched.now = datetime(2026, 3, 30, 19, 30, tzinfo=UTC)
    with mock.patch("flows.pipelines.conditions.STARTS", 3):
        watched.begins(f"{later} UTC")


def test_an_alias_that_moved_begins_a_run(plant: Plant) -> None:
    assert plant.run() == ("line-1", "waiting")
    watched = Watched(plant, {"kind": "alias", "run": "brew", "alias": "candidate"})
    watched.end("line-1")
    assert watched.poll().pipeline is None
    promote(plant.home, "brew-1", "champion", 3, by="ann", why="good")
    assert watched.poll().pipeline is None, "another alias"
    promote(plant.home, "brew-1", "candidate", 3, by="ann", why="good")
    watched.begins("candidate of brew moved to iteration 3 of run brew-1")


def test_an_alias_of_an_old_run_begins_a_run(plant: Plant) -> None:
    plant.run()
    watched = Watched(plant, {"kind": "alias", "run": "brew-1"})
    watched.end("line-1")
    promote(plant.home, "brew-1", "champion", 3, by="ann", why="good")
    with mock.patch.object(Runs, "list", return_value=[]):  # it lists the newest ones only
        watched.begins("champion of brew-1 moved to iteration 3 of run brew-1")


def test_a_link_to_a_file_keeps_its_own_folder(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    elsewhere = plant.file.parent / "elsewhere" / "line.yaml"
    elsewhere.parent.mkdir()
    plant.file.rename(elsewhere)
    plant.file.symlink_to(elsewhere)
    with Ledger.open(plant.home.ledger) as ledger:
        deploy_pipeline(ledger, plant.file, "ann", lambda: watched.now)
        assert ledger.pipeline_triggers.deployment("line").file == str(plant.file)
    (watched.rows / "b.jsonl").write_text("2")
    watched.begins(f"data {watched.rows} changed")


def test_the_successful_end_of_another_pipeline_begins_a_run(plant: Plant) -> None:
    watched = Watched(plant, {"kind": "pipeline", "name": "other"})
    with Ledger.open(plant.home.ledger) as ledger:
        (seen,) = ledger.pipeline_triggers.seen("line")
        assert seen.why == "pipeline other has not finished yet"
    for number, (state, begins) in enumerate([(FAILED, False), (FINISHED, True), (FINISHED, True)], 1):
        with Ledger.open(plant.home.ledger) as ledger:
            other = ledger.pipelines.create(NewPipeline("other", str(number), {}, "/", "ann"))
        assert watched.poll().pipeline is None
        watched.end(other.id, state)
        if begins:
            watched.begins(f"pipeline {other.id} finished")


def test_what_fires_during_a_run_is_remembered_and_one_run_follows(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    for number in (1, 2, 3):
        (watched.rows / "b.jsonl").write_text(f"change {number}")
        assert watched.poll().pipeline == "line-1"
    watched.end("line-1", FAILED)
    assert watched.poll().pipeline == "line-2", "a failed run does not hold up the next one"
    with Ledger.open(plant.home.ledger) as ledger:
        assert [row.pipeline for row in ledger.pipeline_triggers.seen("line")] == [None, "line-1", "line-2", "line-2"]
    watched.end("line-2")
    assert watched.poll().pipeline is None


def test_a_pipeline_that_waits_goes_on_once_people_have_decided(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    plant.write(JOBS, triggers=[DATA])
    (watched.rows / "b.jsonl").write_text("2")
    assert watched.poll().pipeline == "line-1"
    assert plant.run() == ("line-1", "waiting"), "a run of the file by hand is the same one"
    (watched.rows / "b.jsonl").write_text("3")
    found = watched.poll()
    assert found.pipeline is None and "a run follows for what has changed" in found.said
    with Ledger.open(plant.home.ledger) as ledger:
        (approval,) = ledger.approvals.list(only_open=True)
        ledger.approvals.decide(approval.id, ApprovalDecision("approved", "ann", "fine", "api"))
    assert watched.poll() == PollResult("line-1", "pipeline line-1 goes on, since people have decided")
    assert plant.run() == ("line-1", "finished")
    assert watched.poll().pipeline == "line-2"


def test_a_pipeline_whose_run_was_resumed_by_hand_goes_on(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    (watched.rows / "b.jsonl").write_text("2")
    assert watched.poll().pipeline == "line-1"
    with mock.patch("tests.flows.pipelines.support.drive_run", ask_on_the_way):
        assert plant.run() == ("line-1", "waiting")
    assert watched.poll().pipeline is None
    with Ledger.open(plant.home.ledger) as ledger:
        ledger.approvals.decide(1, ApprovalDecision("approved", "ann", "fine", "cli"))
    drive_run(plant, "sft-1", 2)
    assert watched.poll() == PollResult("line-1", "pipeline line-1 goes on, since people have decided")
    assert plant.run() == ("line-1", "finished")


@pytest.mark.parametrize("moment", range(1, 9))
def test_a_poll_that_is_killed_anywhere_is_made_good_by_the_next_one(plant: Plant, moment: int) -> None:
    watched = Watched(plant, DATA, {"kind": "schedule", "interval": "1h"})
    (watched.rows / "b.jsonl").write_text("2")
    watched.now += timedelta(hours=1)
    passed = 0

    def step() -> None:
        nonlocal passed
        passed += 1
        if passed == moment:
            raise Killed

    def guarded(own: Any) -> Any:
        def call(*arguments: Any) -> Any:
            step()
            result = own(*arguments)
            step()
            return result

        return call

    changes = {name: guarded(getattr(PipelineTriggers, name)) for name in ("see", "begin")}
    with mock.patch.multiple(PipelineTriggers, **changes):
        try:
            watched.poll()
            assert moment > passed
        except Killed:
            pass
    watched.begins("")
    with Ledger.open(plant.home.ledger) as ledger:
        assert [row.id for row in ledger.pipelines.newest()] == ["line-1"]


def test_several_watchers_begin_one_run(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    (watched.rows / "b.jsonl").write_text("2")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: watched.poll().pipeline, range(16)))
    assert "line-1" in found and set(found) <= {"line-1", None}
    with Ledger.open(plant.home.ledger) as ledger:
        assert len(ledger.pipelines.newest()) == 1


def test_another_place_in_the_file_is_the_same_trigger_and_other_settings_are_a_new_one(plant: Plant) -> None:
    watched = Watched(plant, DATA)
    (watched.rows / "b.jsonl").write_text("2")
    watched.begins("data")
    plant.write(plant_jobs(), triggers=[{"kind": "schedule", "interval": "1h"}, DATA])
    assert watched.poll().pipeline is None
    plant.write(plant_jobs(), triggers=[{"kind": "data", "path": "rows/b.jsonl"}])
    assert watched.poll().pipeline is None, "its first sight begins nothing"


def test_mistakes_are_named(plant: Plant) -> None:
    plant.home.folder.mkdir()
    with Ledger.open(plant.home.ledger) as ledger:
        with pytest.raises(ConfigurationError, match="triggers: missing"):
            deploy_pipeline(ledger, plant.file, "ann")
        for trigger, said in [
            ({"cron": "0 25 * * *"}, r"triggers\.0\.cron: .*hour: '25'"),
            ({"cron": "* * * * *", "interval": "1h"}, "exactly one of cron and interval"),
            ({"interval": "5s"}, rf"{plant.file}: triggers\.0\.interval: 5s is too short"),
            ({"interval": "1h", "timezone": "Europe/Berln"}, r"triggers\.0\.timezone"),
        ]:
            plant.write(plant_jobs(), triggers=[{"kind": "schedule", **trigger}])
            with pytest.raises(ConfigurationError, match=said):
                deploy_pipeline(ledger, plant.file, "ann")
        plant.write(plant_jobs(), triggers=[DATA, hourly := {"kind": "schedule", "interval": "1h"}])
        deploy_pipeline(ledger, plant.file, "ann")
        plant.write(plant_jobs(), triggers=[DATA, hourly | {"interval": "5s"}])
        with pytest.raises(ConfigurationError, match=rf"{plant.file}: triggers\.1\.interval: "):
            poll_pipeline(ledger, "line")
        with pytest.raises(PipelineNotFound, match="not deployed in this ledger"):
            poll_pipeline(ledger, "other")
