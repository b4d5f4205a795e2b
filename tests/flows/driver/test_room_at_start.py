"""The start of a session: it divides the nodes' memory among the roles before anything is loaded, and happens once at a time."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from db.ledger import Ledger
from flows.driver import actors_start
from flows.driver.actors_start import ActorsStart
from flows.driver.attachment import RAY_VARIABLE
from flows.placement.seats import SEATS
from tests.planning.examples import SMALL_JUDGE
from tests.services import ROOT
from yatt_core.cluster.devices import Device
from yatt_core.cluster.nodes import A_NODE
from yatt_core.errors import AwayError, ConfigurationError
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec import RunSpec, load_spec

MIB = 1 << 20
OWN = load_spec(ROOT / "tests" / "workloads" / "counting.yaml")
SPEC = load_spec(ROOT / "configs" / "genrm.yaml", [SMALL_JUDGE, "rollout.batch_samples=256"])


def start(monkeypatch: pytest.MonkeyPatch, mib: int, spec: RunSpec = SPEC) -> tuple[ActorsStart, list[str]]:
    """Returns a start on a node with two cores and `mib` of memory, and the kinds of messages its observer gets."""
    said: list[str] = []
    find(monkeypatch, mib)
    observer = SimpleNamespace(stage=lambda _: said.append("stage"), warned=lambda _: said.append("warned"))
    context: Any = SimpleNamespace(spec=spec, observer=observer)
    nothing: Any = None
    begun = ActorsStart(lambda: None)
    begun.enter_branch(context, nothing, nothing)
    return begun, said


def find(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    """Has the cluster consist of a node with two cores and `mib` of memory."""
    devices = tuple(Device(number, "core", "a", f"a:core{number}", memory=mib * MIB // 2) for number in range(2))
    monkeypatch.setattr(actors_start, "inventory", lambda: devices)


@pytest.mark.parametrize(
    ("mib", "resident", "says"),
    [(8192, True, []), (3390, False, ["stage"]), (0, True, ["warned"])],
)
def test_roles_share_the_available_memory(
    monkeypatch: pytest.MonkeyPatch, mib: int, resident: bool, says: list[str]
) -> None:
    begun, said = start(monkeypatch, mib)
    assert begun._account() is resident
    assert begun.devices == 2
    assert said == says


@pytest.mark.parametrize("mib", [0, 8192])
def test_a_workload_whose_size_is_never_known_is_not_warned_of_it(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    begun, said = start(monkeypatch, mib, OWN)
    assert begun._account() is True
    assert said == []


@pytest.mark.parametrize(
    ("spec", "starting", "loading"),
    [
        (SPEC, "starting controllers, engines and trainer", "loading engines and trainer"),
        (OWN, "starting the trainer", "loading the trainer"),
    ],
)
def test_the_steps_of_a_start_name_what_the_run_has(
    monkeypatch: pytest.MonkeyPatch, spec: RunSpec, starting: str, loading: str
) -> None:
    stages: list[str] = []
    actors: Any = mock.MagicMock()
    observer = SimpleNamespace(stage=stages.append, warned=stages.append)
    context: Any = SimpleNamespace(spec=spec, observer=observer)
    begun = ActorsStart(lambda: None)
    begun.enter_branch(context, actors, mock.MagicMock())
    find(monkeypatch, 8192)
    inputs = InputsReceipt("inputs", "", "0" * 64, "0" * 64, 1, 1, 1, 1, 1)
    for method, answer in {"_settled_inputs": inputs, "_check_inputs": None, "_note_environment": None}.items():
        monkeypatch.setattr(begun, method, lambda *_, answer=answer: answer)
    for method in (
        "_had_room",
        "_use_what_is_needed",
        "_quarantined",
        "_book_controllers",
        "_book_disks",
        "book_losses",
    ):
        monkeypatch.setattr(begun, method, lambda: None)
    for method in ("_charge", "_book_seats", "_note_exactness"):
        monkeypatch.setattr(begun, method, lambda *_: None)
    begun.make_ready()
    assert stages == [starting, "preparing the run's inputs", loading]


def test_a_run_without_enough_memory_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="2xcore"):
        start(monkeypatch, 1024)[0]._account()


@pytest.mark.parametrize("held_by", ["this session", "an earlier session"])
def test_what_a_run_had_room_for_lacks_a_node_that_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held_by: str
) -> None:
    begun, _ = start(monkeypatch, 1024)
    observer = SimpleNamespace(stage=lambda _: None, warned=lambda _: None)
    trouble = list[AwayError]()

    def check_room() -> None:
        if trouble:
            raise trouble[0]

    actors: Any = SimpleNamespace(avoid_nodes=frozenset(), check_room=check_room)
    nothing: Any = None
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("toy", {}, "0" * 64, 1).id
        context: Any = SimpleNamespace(spec=SPEC, observer=observer, ledger=ledger, run=run)
        begun.enter_branch(context, actors, nothing)
        if held_by == "this session":
            begun._inputs = InputsReceipt("inputs", "", "0" * 64, "0" * 64, 1, 1, 1, 1, 1)
        else:
            monkeypatch.setenv(RAY_VARIABLE, "10.0.0.1:6379")
            ledger.events.append(run, SEATS, {"seats": []})
        with pytest.raises(AwayError, match=r"it is lost\. (.|\n)*2xcore") as caught:
            begun._account()
        assert caught.value.dependency == A_NODE
        assert begun.place_is_there(A_NODE) is False
        find(monkeypatch, 8192)
        assert begun.place_is_there(A_NODE) is True
        trouble.append(AwayError("a node of the run is away: it is lost or quarantined"))
        assert begun.place_is_there(A_NODE) is False, "its memory would do, but it lacks places"
        assert begun.place_is_there("judge 'kind' at https://judge.example/v1") is None


def test_a_wait_that_is_interrupted_starts_nothing_beside_the_start_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, _ = start(monkeypatch, 8192)
    going_on = threading.Event()
    connections = []
    standing = object()

    def connect() -> None:
        connections.append(threading.current_thread().name)
        going_on.wait()

    def interrupt(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(begun, "make_ready", lambda: standing)
    begun.begin(connect)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(InterruptedError):
            begun.ready()
    finally:
        signal.signal(signal.SIGALRM, before)
    threading.Timer(0.05, going_on.set).start()
    assert begun.ready() is standing
    assert len(connections) == 1
