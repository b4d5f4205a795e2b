"""The start of a session: it divides the nodes' memory among the roles before anything is loaded, and happens once at a time."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from flows.driver import actors_start
from flows.driver.actors_start import ActorsStart
from tests.planning.examples import SMALL_JUDGE
from tests.services import ROOT
from yatt_core.cluster.devices import Device
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec

MIB = 1 << 20
SPEC = load_spec(ROOT / "configs" / "genrm.yaml", [SMALL_JUDGE, "rollout.batch_samples=256"])


def start(monkeypatch: pytest.MonkeyPatch, mib: int) -> tuple[ActorsStart, list[str]]:
    """Returns a start on a node with two cores and `mib` of memory, and the kinds of messages its observer gets."""
    said: list[str] = []
    devices = tuple(Device(number, "core", "a", f"a:core{number}", memory=mib * MIB // 2) for number in range(2))
    monkeypatch.setattr(actors_start, "inventory", lambda: devices)
    observer = SimpleNamespace(stage=lambda _: said.append("stage"), warned=lambda _: said.append("warned"))
    context: Any = SimpleNamespace(spec=SPEC, observer=observer)
    nothing: Any = None
    begun = ActorsStart(lambda: None)
    begun.enter_branch(context, nothing, nothing)
    return begun, said


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


def test_a_run_without_enough_memory_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="2xcore"):
        start(monkeypatch, 1024)[0]._account()


def test_a_wait_that_is_interrupted_starts_nothing_beside_the_start_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, _ = start(monkeypatch, 8192)
    going_on, connections, standing = threading.Event(), [], object()

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
