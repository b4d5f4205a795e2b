"""Deleting a run: what is refused, what is left after a kill at every step, and services that are away meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from db.core.errors import RunNotFound
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import MLFLOW
from flows.run.creation import create_run, first_entries, write_spec
from flows.run.deletion import delete_run, require_deletable
from flows.run.home import Home
from flows.run.lease import KEEPER
from tests.crash import run_until
from tests.flows.run.scenarios import Told, delete_first
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.tracking import TrackingSpec


def started(home: Home, **tracking: object) -> str:
    """Creates a run as a start that failed leaves it: with a folder, and with a creation that its trackers were sent."""
    spec = toy_spec().model_copy(update={"tracking": TrackingSpec.model_validate(tracking)})
    run = create_run(home, spec)
    (home.run_folder(run) / "inputs").mkdir()
    (home.run_folder(run) / "inputs" / "prompts").write_text("prompts")
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 600)
        ledger.outbox.enqueue(fence, first_entries(run, spec))
        for lane in spec.tracking.names:
            (creation, *_) = ledger.outbox.claim(fence, lane=lane)
            if lane != MLFLOW:
                ledger.outbox.delivered(fence, [creation.id], f"yatt/{run}")
        ledger.leases.release(fence)
    return run


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "told")


def names(home: Home) -> set[str]:
    return {path.name for path in home.folder.iterdir() if not path.name.startswith("ledger.db")}


def test_a_kill_at_every_step_leaves_the_run_or_remains_that_a_repetition_removes(tmp_path: Path) -> None:
    seeded = Home(tmp_path / "seeded" / "runs")
    started(seeded)
    for step in itertools.count(1):
        home = Home(tmp_path / str(step) / "runs")
        shutil.copytree(seeded.folder.parent, home.folder.parent)
        killed, acknowledged = run_until(delete_first, home.folder, step)
        with Ledger.open(home.ledger) as ledger:
            record = ledger.deletions.find("toy-1")
            if record is None:
                assert ledger.runs.find("toy-1").state == "created"
                assert (home.run_folder("toy-1") / "inputs" / "prompts").exists() and killed
            else:
                with pytest.raises(RunNotFound):
                    ledger.runs.find("toy-1")
            assert (record is not None and record.cleaned_at is not None) or not acknowledged
        done = delete_run(home, "toy-1", "bob", "", Told(home.folder.parent / "told"))
        assert (done.by, done.left) == ("bob" if record is None else "ann", ())
        assert names(home) == set()
        assert set((home.folder.parent / "told").read_text().splitlines()) == {"deleted ['yatt']"}
        if not killed:
            break
    assert step > 8


def test_what_has_begun_or_is_driven_is_refused_unchanged(home: Home, told: Told) -> None:
    begun = seed_run(home)
    idle = started(home)
    with Ledger.open(home.ledger) as ledger:
        held = ledger.leases.acquire(idle, this_process("driver of it"), 600)
        for run, says in ((begun, "iteration 2 is committed"), (idle, "held by driver of it")):
            folder = sorted(home.run_folder(run).rglob("*"))
            head = ledger.events.head(run)
            with pytest.raises(ConfigurationError, match=says):
                require_deletable(ledger, run)
            with pytest.raises(ConfigurationError, match=says):
                delete_run(home, run, "ann", "", told)
            assert (ledger.events.head(run), sorted(home.run_folder(run).rglob("*"))) == (head, folder)
        ledger.leases.release(held)
        assert delete_run(home, idle, "ann", "", told).left == ()
        with pytest.raises(RunNotFound):
            delete_run(home, "nobody-1", "ann", "", told)


def test_a_run_whose_driver_died_is_deleted_with_its_services(home: Home, told: Told) -> None:
    run = started(home)
    child = os.fork()
    if child == 0:
        with Ledger.open(home.ledger) as ledger:
            ledger.leases.acquire(run, this_process("driver"), 600)
        os._exit(0)
    os.waitpid(child, 0)
    supervisor = home.run_folder(run) / "supervisor"
    supervisor.mkdir()
    (supervisor / "driver.json").write_text('{"term": 2, "pid": 1}')
    assert delete_run(home, run, "ann", "", told).left == ()


def test_a_keeper_is_waited_for_not_refused(home: Home, told: Told) -> None:
    run = started(home)
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, this_process(KEEPER), 0.5)
        require_deletable(ledger, run)
    assert delete_run(home, run, "ann", "", told).left == ()


def test_remains_are_named_and_removed_by_a_repetition(home: Home, tmp_path: Path, told: Told) -> None:
    run = started(home)
    done = delete_run(home, run, "ann", "why", Told(tmp_path / "told", away=True))
    assert len(done.left) == 1 and "MLflow" in done.left[0]
    assert names(home) == set()
    again = delete_run(home, run, "bob", "", told)
    assert (again.by, again.why, again.at, again.left) == ("ann", "why", done.at, ())
    assert (tmp_path / "told").read_text() == "deleted ['yatt']\n"
    delete_run(home, run, "bob", "", Told(tmp_path / "told", away=True))  # nothing is left, so nobody is told


def test_a_run_that_was_never_sent_to_the_tracker_is_not_searched_there(home: Home, tmp_path: Path) -> None:
    run = create_run(home, toy_spec())
    write_spec(home.run_folder(run), toy_spec())
    assert delete_run(home, run, "ann", "", Told(tmp_path / "told", away=True)).left == ()


@pytest.mark.parametrize(
    ("tracking", "elsewhere"),
    [
        ({"trackers": ["wandb"]}, ["Weights & Biases run yatt/toy-1"]),
        ({"trackers": ["wandb"], "wandb_mode": "offline"}, []),
        ({"trackers": ["tensorboard"]}, []),
        ({"trackers": ["tensorboard"], "tensorboard_folder": "/shared"}, ["TensorBoard event file /shared/yatt/toy-1"]),
    ],
)
def test_what_other_trackers_keep_is_named_and_mlflow_is_not_asked(
    home: Home, tmp_path: Path, tracking: dict[str, object], elsewhere: list[str]
) -> None:
    run = started(home, **tracking)
    done = delete_run(home, run, "ann", "", Told(tmp_path / "told", away=True))
    assert (done.left, list(done.elsewhere)) == ((), elsewhere)
    assert names(home) == set()
