"""`yatt alarms`, the alarms in `yatt show`, and the check of notifications before a run is created or resumed."""

from __future__ import annotations

import re

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.alarms import AlarmRow
from db.write.outbox import NOTIFICATION, OutboxEntry
from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from tests.services import ROOT

VIRTUAL = str(ROOT / "tests" / "specs" / "virtual.yaml")


@pytest.fixture
def run(home: Home) -> str:
    """Creates a paused run with seven alarms, one of which was never delivered."""
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("test"), 60)
        refused = OutboxEntry(f"{run}/refused", "tags", {}, 0, "tensorboard")
        ledger.outbox.enqueue(fence, [refused.to("tensorboard")])
        ledger.outbox.claim(fence, lane="tensorboard")
        ledger.outbox.refused(fence, refused.id, "no tag")
        for iteration in range(7):
            body = {
                "id": f"{run}/b0/i{iteration}/alarm/entropy", "rule": "entropy" if iteration else "kl", "branch": 0,
                "iteration": iteration, "first": iteration, "action": "pause", "text": f"found {iteration}",
                "evidence": {"window": [[iteration, 0.5]], "threshold": 1.0},
            }  # fmt: skip
            told = [OutboxEntry(body["id"], NOTIFICATION, {"text": "x"}, 0)] if iteration == 6 else []
            ledger.alarms.record(fence, body, told)
        ledger.runs.set_state(fence, "paused", "guard entropy: found 6")
        ledger.leases.release(fence)
    return run


def test_alarms_are_listed_with_their_evidence(yatt: Yatt, run: str) -> None:
    document = yatt("alarms", run, "--rule", "entropy", "--limit", "2", "-o", "json").document
    assert (document["run"], document["count"]) == (run, 6)
    assert [row["iteration"] for row in document["alarms"]] == [5, 6]
    assert set(document["alarms"][0]) == set(AlarmRow.__slots__)
    assert document["alarms"][1]["evidence"] == {"window": [[6, 0.5]], "threshold": 1.0}
    text = yatt("alarms", run).out
    assert "7 alarms" in text and "found 6" in text
    assert "the newest 2 of 7 alarms" in yatt("alarms", run, "--limit", "2").out


def test_one_alarm_is_singular(yatt: Yatt, run: str) -> None:
    text = yatt("alarms", run, "--rule", "kl").out
    assert "1 alarm" in text and "1 alarms" not in text


def test_a_run_without_alarms_says_so(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    assert yatt("alarms", run).out == f"{run}: no alarms\n"
    assert yatt("alarms", run, "-o", "json").document == {"run": run, "count": 0, "alarms": []}


def test_show_has_the_newest_alarms_and_the_usage(yatt: Yatt, run: str) -> None:
    document = yatt("show", run, "-o", "json").document
    assert document["alarm_count"] == 7
    assert [row["iteration"] for row in document["alarms"]] == [2, 3, 4, 5, 6]
    assert (document["notifications_pending"], document["outbox_pending"], document["outbox_refused"]) == (1, 3, 1)
    assert set(document["spent"]) == {"wall_hours", "device_hours"}
    text = yatt("show", run).out
    assert "the newest 5 of 7 alarms" in text and re.search(r"notifications +1 ", text)
    assert "paused (guard entropy: found 6)" in text
    assert re.search(r"refused by trackers +1 row; the driver's log says why", text)


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        (None, "the environment variable YATT_NOTIFY is not set"),
        ("https://x hunter22", "address 1 of 2 in the environment variable YATT_NOTIFY"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train", "deploy"])
def test_a_run_is_not_created_if_notifications_cannot_be_sent(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch, command: str, addresses: str | None, said: str
) -> None:
    monkeypatch.delenv("YATT_NOTIFY", raising=False)
    if addresses is not None:
        monkeypatch.setenv("YATT_NOTIFY", addresses)
    answer = yatt(command, VIRTUAL, "--set", "guards.notify={}")
    assert answer.code == 2 and said in answer.err and "hunter22" not in answer.err
    assert not home.folder.exists() or not list(home.folder.iterdir())


def test_a_resume_says_why_the_run_was_paused(yatt: Yatt, run: str) -> None:
    answer = yatt("resume", run, "--set", "iterations=1")
    assert answer.code == 2, "two iterations are committed"
    assert f"{run} was paused: guard entropy: found 6" in answer.err


def test_a_service_leaves_a_paused_run_to_a_person(yatt: Yatt, home: Home, run: str) -> None:
    answer = yatt("resume", run, "--unless-paused")
    assert (answer.code, answer.out) == (0, "")
    assert f"{run} was paused: guard entropy: found 6" in answer.err and f"`yatt resume {run}`" in answer.err
    assert yatt("resume", run, "--unless-paused", "-o", "json").document["state"] == "paused"
    with Ledger.open(home.ledger) as ledger:
        assert ledger.runs.find(run).state == "paused"
        assert ledger.runs.revision(run).revision == 1


def test_a_run_that_was_not_paused_is_resumed(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    assert yatt("resume", run, "--unless-paused", "--set", "iterations=1").code == 2, "two iterations are committed"
