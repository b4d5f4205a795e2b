"""The thread in every actor: it learns of new drivers, notices their absence, and reports what the actor is doing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows.run import profile_record
from tests.control_store import FolderStore
from tests.waiting import wait_until
from yatt_core.actors.call_kinds import PHASES, kind_of_call, phase_of_call, version_part
from yatt_core.actors.presence import GONE_EXIT_CODE, Presence, StackReport
from yatt_core.cluster.driver_signs import DriverBeat, announce, newest_term, read_signs, require_newest
from yatt_core.errors import FencedError, InfrastructureError
from yatt_core.run_actors.watchdog import describe, find_stuck, gather_stacks, missing_actors
from yatt_core.spent_time import DATA, ENGINE, OTHER, WAITING, spent

PATIENCE = 30.0
FOR_EVER = 1e9
"""Grace period of a `Presence` in the tests' own process, which would exit once the period is over."""


def working(actor: str, waits: bool = False) -> StackReport:
    return StackReport(actor, "generate", 3.0, "engine.py:7 decode", waits, ("stack",))


def idle(actor: str) -> StackReport:
    return StackReport(actor, "", 0.0, "", False, ("stack",))


def reports(*given: StackReport) -> dict[str, StackReport]:
    return {report.actor: report for report in given}


def test_a_newer_driver_is_noticed_while_work_continues(tmp_path: Path) -> None:
    presence = Presence("rollout-0", 1, FOR_EVER, FolderStore(tmp_path))
    with presence.serving("generate", 1), DriverBeat(2, store=FolderStore(tmp_path)):
        wait_until(lambda: presence.fence.term == 2)
        assert presence.report().method == "generate"
        with pytest.raises(FencedError), presence.serving("generate", 1):
            pass


def test_the_time_of_a_call_is_accounted_by_its_kind(tmp_path: Path) -> None:
    presence = Presence("trainer-0", 1, FOR_EVER, FolderStore(tmp_path))
    with presence.serving("learn", 1), spent(DATA, "read"):
        pass
    found = {one.path: (one.kind, one.calls) for one in presence.times.take()}
    assert found == {("learn",): (ENGINE, 1), ("learn", "read"): (DATA, 1)}


def test_a_controller_has_no_engine_and_every_call_of_an_iteration_has_a_phase() -> None:
    assert kind_of_call("controller-0", "evaluate") == OTHER
    assert kind_of_call("trainer-0", "evaluate") == ENGINE
    assert kind_of_call("endpoint-0", "judge") == WAITING
    assert phase_of_call(("generate", version_part(7)), 7) == "evaluate"
    assert phase_of_call(("generate", version_part(6)), 7) == "collect"
    assert phase_of_call(("restore",), 7) is None
    assert set(PHASES.values()) < set(profile_record.PHASES)


def test_of_several_calls_the_longest_running_is_reported(tmp_path: Path) -> None:
    presence = Presence("rollout-0", 1, FOR_EVER, FolderStore(tmp_path))
    begun = threading.Event()
    end = threading.Event()

    def judge() -> None:
        with presence.serving("judge", 1):
            begun.set()
            end.wait(PATIENCE)

    thread = threading.Thread(target=judge)
    with presence.serving("generate", 1):
        thread.start()
        assert begun.wait(PATIENCE)
        assert presence.report().method == "generate"
    assert presence.report().method == "judge"
    end.set()
    thread.join(PATIENCE)
    assert presence.report().method == ""


def test_the_fence_can_look_up_a_driver_immediately(tmp_path: Path) -> None:
    presence = Presence("rollout-0", 1, FOR_EVER, FolderStore(tmp_path))
    assert not presence.fence.renew()
    with DriverBeat(5, store=FolderStore(tmp_path)):
        presence.fence.renew()
        assert presence.fence.term == 5
        assert not presence.fence.renew()


ACTOR = """
import sys, time
from pathlib import Path
from tests.control_store import FolderStore
from yatt_core.actors.presence import Presence
from yatt_core.logs import actor_logs
folder, grace = Path(sys.argv[1]), float(sys.argv[2])
actor_logs(folder, "rollout-0", 1)
presence = Presence("rollout-0", 1, grace, FolderStore(folder))
with presence.serving("generate", 1):
    print("works", flush=True)
    time.sleep(600)
"""


def test_an_actor_without_a_driver_logs_it_and_exits(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", ACTOR, str(tmp_path), "0.3"], timeout=60, check=False, stdout=subprocess.PIPE
    )
    assert process.returncode == GONE_EXIT_CODE
    (log,) = (tmp_path / "logs").glob("*.jsonl")
    assert "0.3 s: rollout-0 " in log.read_text()


@pytest.mark.verify
def test_an_actor_lives_as_long_as_its_driver_does(tmp_path: Path) -> None:
    with DriverBeat(1, 0.1, FolderStore(tmp_path)):
        process = subprocess.Popen([sys.executable, "-c", ACTOR, str(tmp_path), "5"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "works\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(6)
    assert process.wait(60) == GONE_EXIT_CODE
    process.communicate()


def test_an_actor_that_cannot_reach_the_store_exits_and_a_shorter_outage_changes_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    grace = 3.0
    with DriverBeat(1, 0.1, store):
        command = [sys.executable, "-c", ACTOR, str(tmp_path), str(grace)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "works\n"
        store.away.touch()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(grace / 3)
        store.away.unlink()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(grace)
        store.away.touch()
        assert process.wait(60) == GONE_EXIT_CODE
        process.communicate()
    (log,) = (tmp_path / "logs").glob("*.jsonl")
    assert log.read_text().count("the store is away") == 2, "an outage is logged once"


def test_a_driver_that_was_suspended_does_not_hide_its_successor(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    announce(store, 1)
    announce(store, 2)
    with DriverBeat(1, 0.01, store):
        wait_until(lambda: int(store.get(store.keys("driver.term.")[0]) or 0) > 3)
        assert newest_term(store) == 2
        assert read_signs(store).beat == "0"
        with pytest.raises(FencedError, match="term 1 was replaced by 2"):
            require_newest(store, 1)
    with pytest.raises(FencedError, match="term 1 was replaced by 2"):
        announce(store, 1)


def test_no_actor_is_blamed_for_a_store_that_does_not_answer(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.away.touch()
    with pytest.raises(InfrastructureError):
        gather_stacks(store, tmp_path, ["rollout-0"])


def test_busy_actors_answer_and_a_silent_one_is_noticed(tmp_path: Path) -> None:
    Presence("controller-0", 1, FOR_EVER, FolderStore(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", ACTOR, str(tmp_path), "600"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "works\n"
        found = gather_stacks(FolderStore(tmp_path), tmp_path, ["controller-0", "rollout-0"], PATIENCE)
        assert found["controller-0"].method == ""
        assert found["rollout-0"].method == "generate" and found["rollout-0"].seconds >= 0
        assert "<string>" in found["rollout-0"].place and "time.sleep(600)" not in found["rollout-0"].place
        assert "thread MainThread" in found["rollout-0"].stacks[0]
    finally:
        process.kill()
        process.communicate()
    found = gather_stacks(FolderStore(tmp_path), tmp_path, ["controller-0", "rollout-0"], timeout=2.0)
    assert "rollout-0" not in found


def test_old_answers_are_deleted(tmp_path: Path) -> None:
    Presence("controller-0", 1, FOR_EVER, FolderStore(tmp_path))
    for _ in range(13):
        assert gather_stacks(FolderStore(tmp_path), tmp_path, ["controller-0"], PATIENCE)
    assert len(list((tmp_path / "logs" / "stacks").iterdir())) == 10
    newest = max((tmp_path / "logs" / "stacks").iterdir())
    assert json.loads((newest / "controller-0.json").read_text())["actor"] == "controller-0"


def test_a_disk_that_refuses_the_answers_does_not_hide_them(tmp_path: Path) -> None:
    Presence("controller-0", 1, FOR_EVER, FolderStore(tmp_path))
    (tmp_path / "logs").write_text("no folder can be made here")
    assert gather_stacks(FolderStore(tmp_path), tmp_path, ["controller-0"], PATIENCE).keys() == {"controller-0"}


def test_waiting_for_another_actor_shows_in_the_stack(tmp_path: Path) -> None:
    """A rank waits for the others in a collective."""
    from yatt_core.engines.train.ranks.collective import Collective

    presence = Presence("trainer-0", 1, FOR_EVER, FolderStore(tmp_path))
    entered = threading.Event()
    release = threading.Event()

    class Group:
        def allreduce(self, *_: object) -> Group:
            return self

        def wait(self, _: object) -> None:
            entered.set()
            release.wait(PATIENCE)

    def learn() -> None:
        collective = Collective()
        collective._groups = {"cpu": Group()}
        with presence.serving("learn", 1):
            collective.barrier()

    thread = threading.Thread(target=learn)
    thread.start()
    assert entered.wait(PATIENCE)
    report = presence.report()
    release.set()
    thread.join()
    assert report.method == "learn" and report.waits


ACTORS = ("controller-0", "rollout-0", "rollout-1")


def test_an_actor_that_works_without_waiting_is_stuck() -> None:
    answers = reports(working("controller-0", waits=True), working("rollout-0"), idle("rollout-1"))
    assert find_stuck(ACTORS, answers, ["controller-0"]) == ["rollout-0"]


def test_an_actor_that_does_not_answer_is_stuck() -> None:
    answers = reports(working("controller-0", waits=True), idle("rollout-1"))
    assert find_stuck(ACTORS, answers, ["controller-0"]) == ["rollout-0"]
    assert "holds the interpreter, is stopped, or is gone" in describe("rollout-0", None)


def rank(number: int, operation: str = "", awaits: tuple[int, ...] = (), method: str = "learn") -> StackReport:
    stack = (f"trainer-{number}", method, 3.0, "engine.py:7 learn", bool(operation), ("stack",))
    return StackReport(*stack, operation=operation, awaits=tuple(f"trainer-{each}" for each in awaits))


def test_the_rank_for_which_the_others_wait_is_named() -> None:
    names = [f"trainer-{number}" for number in range(4)]
    tensors = "all_reduce 7 of TENSOR"
    stages = "a transfer between stages"
    answers = reports(rank(0, tensors, (1,)), rank(1), rank(2, tensors, (3,)), rank(3, stages, (1,)))
    assert find_stuck(names, answers, names) == ["trainer-1"]
    waiting = missing_actors(answers)
    assert waiting == {"trainer-1": [f"trainer-0 in {tensors}", f"trainer-3 in {stages}"]}, "rank 3 waits itself"
    assert f"trainer-0 in {tensors}, trainer-3 in {stages}" in describe(names[1], answers[names[1]], waiting[names[1]])
    answers = reports(rank(0, tensors, (1,)), rank(1, method=""))
    assert find_stuck(names[:2], answers, names[:2]) == ["trainer-1"], "it was not called, or its call has failed"
    answers = reports(rank(0, tensors, (1,)), rank(1, stages, (0,)))
    assert find_stuck(names[:2], answers, names[:2]) == names[:2], "each waits for the other"
    assert describe(names[0], answers[names[0]]).endswith(f"{tensors} with trainer-1")


def test_if_all_wait_the_busy_ones_are_stuck() -> None:
    answers = reports(working("controller-0", waits=True), idle("rollout-0"), idle("rollout-1"))
    assert find_stuck(ACTORS, answers, ["rollout-1"]) == ["controller-0"]


def test_if_all_are_idle_the_awaited_ones_are_stuck() -> None:
    answers = reports(*map(idle, ACTORS))
    assert find_stuck(ACTORS, answers, ["rollout-1"]) == ["rollout-1"]
    assert describe("rollout-1", answers["rollout-1"]) == "rollout-1 is idle"
