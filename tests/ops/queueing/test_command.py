"""`yatt queue`: pools, submission, changes, the list, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.queueing.pools_file import pools_file
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.lease import DRIVER
from ops.queueing.submitting import SubmissionOptions, submit
from tests.db.tools import holder
from tests.flows.queueing.simulated import POOLS, World
from tests.ops.conftest import Yatt
from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import yaml_text

SPEC = str(ROOT / "tests" / "specs" / "virtual.yaml")


@pytest.fixture
def pooled(home: Home) -> Home:
    home.folder.mkdir()
    pools_file(home).write_text(yaml_text({**POOLS, "devices_per_owner": 3}))
    return home


def test_a_first_pools_file_has_the_devices_of_this_machine(yatt: Yatt, home: Home) -> None:
    assert yatt("queue", "init").code == 0
    assert pools_file(home).read_text().startswith("pools:")
    again = yatt("queue", "init")
    assert (again.code, "already exists" in again.err) == (2, True)


def test_pools_are_listed_and_checked_before_there_are_runs(yatt: Yatt, pooled: Home) -> None:
    assert [pool["name"] for pool in yatt("queue", "-o", "json").document["pools"]] == ["main", "spot"]
    pools_file(pooled).write_text("pools: {main: {devices: true}}")
    wrong = yatt("queue")
    assert wrong.code == 2 and "pools.yaml: pools.main.devices" in wrong.err


def test_a_spec_becomes_a_run_that_waits(yatt: Yatt, pooled: Home) -> None:
    words = ("--pool", "spot,main", "--priority", "2", "--project", "chat", "--by", "ada", "--auto-checkpoints")
    made = yatt("queue", "submit", SPEC, *words, "-o", "json").document
    assert made["run"] == "virtual-1"
    assert (made["pools"], made["devices"], made["checkpoints"]) == (["spot", "main"], 1, "auto")
    listed = yatt("queue", "-o", "json").document
    assert [(each["run"], each["state"], each["owner"]) for each in listed["entries"]] == [
        ("virtual-1", "waiting", "ada")
    ]
    assert [(pool["name"], pool["free"], pool["price"]) for pool in listed["pools"]] == [
        ("main", 4, 2.0),
        ("spot", 2, 1.0),
    ]
    assert listed["scheduler"] is None
    text = yatt("queue")
    assert "virtual-1" in text.out and "1 of spot or main" in text.out and "2 EUR a device and hour" in text.out


def test_people_change_the_queue_and_the_chain_says_who(yatt: Yatt, pooled: Home) -> None:
    yatt("queue", "submit", SPEC, "--pool", "main", "--by", "ada")
    for words in (("priority", "latest", "-3"), ("pause", "latest"), ("resume", "latest"), ("remove", "latest")):
        assert yatt("queue", *words, "--by", "ben").code == 0
    with Ledger.open(pooled.ledger) as ledger:
        links = [link.body for link in ledger.events.of_kind("virtual-1", "queue_changed")]
    assert links == [
        {"by": "ben", "priority": -3},
        *({"by": "ben", "wanted": wanted} for wanted in ("hold", "run", "remove")),
    ]


def test_devices_are_reported_by_number(yatt: Yatt, pooled: Home) -> None:
    yatt("queue", "submit", SPEC, "--pool", "main")
    assert yatt("queue", "devices", "spot", "--lost", "0,1", "--within", "60").code == 0
    assert yatt("queue", "devices", "spot", "--back", "1").code == 0
    pools = {pool["name"]: pool for pool in yatt("queue", "-o", "json").document["pools"]}
    assert (pools["spot"]["away"], pools["spot"]["free"]) == ([0], 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", SPEC, "--pool", "mani"), "did you mean 'main'"),
        (("submit", SPEC), "--pool: there are several pools"),
        (("submit", SPEC, "--pool", "main,main"), "each pool can be named once only"),
        (("submit", SPEC, "--pool", "main", "--devices", "4"), "can have at most 3 of them there"),
        (("submit", SPEC, "--pool", "main", "--priority", "101"), "expected a number from -100 to 100"),
        (("submit",), "expected either SPEC"),
        (("devices", "spot", "--lost", "9"), "expected numbers of its devices"),
        (("devices", "spot"), "expected --lost, --back or both"),
        (("devices", "spot", "--lost", "0,1", "--back", "1"), "--lost and --back both name 1"),
        (("devices", "spot", "--lost", "\u00b2"), "expected numbers of its devices"),
        (("devices", "spot", "--lost", "0", "--within", "inf"), "--within inf: expected at most"),
        (("devices", "spot", "--lost", "0", "--within", "nan"), "Invalid value for '--within'"),
        (("submit", SPEC, "--pool", "main", "--project", "a\nb"), "--project 'a\\nb': expected a name"),
        (("devices", "sopt", "--lost", "0"), "did you mean 'spot'"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run_exists(
    yatt: Yatt, pooled: Home, words: tuple[str, ...], said: str
) -> None:
    answer = yatt("queue", *words, "--by", "ada")
    assert (answer.code, said in answer.err) == (2, True), answer.err
    assert not Path(pooled.folder / "virtual-1").exists()


def test_a_run_is_in_the_queue_once(yatt: Yatt, pooled: Home) -> None:
    yatt("queue", "submit", SPEC, "--pool", "main")
    again = yatt("queue", "submit", "--run", "latest", "--pool", "main")
    assert (again.code, "in the queue already" in again.err) == (2, True)


def test_the_list_shows_what_a_run_cost(yatt: Yatt, home: Home) -> None:
    world = World(home.folder)
    with world.ledger:
        run = world.submit(iterations=10)
        world.finish()
    (ended,) = yatt("queue", "-o", "json").document["ended"]
    assert (ended["run"], ended["state"], ended["reason"]) == (run, "ended", "completed")
    assert ended["cost"] == pytest.approx(2 * 2.0 * 13 / 60, rel=0.2)
    assert "predicted within" in yatt("queue").out


def test_a_run_that_somebody_drives_cannot_come_back_to_the_queue(tmp_path: Path) -> None:
    world = World(tmp_path / "runs")
    with world.ledger as ledger:
        run = world.submit(2, iterations=9)
        world.rounds(3)
        world.drivers.end(run, "paused", "guard loss")
        world.round()
        ledger.leases.acquire(run, holder(f"{DRIVER}{run}"), 9e9)
        with pytest.raises(ConfigurationError, match="is driven by"):
            submit(world.home, ledger, run, current_spec(ledger, run), SubmissionOptions(["main"]), "ada")
