"""A disconnect waits for calls of background threads, and none begins meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import ray

from yatt_core.cluster import connect
from yatt_core.cluster.background_calls import calling_ray, no_calls
from yatt_core.errors import InfrastructureError
from yatt_core.run_actors import node_logs
from yatt_core.run_actors.node_logs import LogSource, RayNodes


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)


def test_a_call_needs_a_connection() -> None:
    with pytest.raises(InfrastructureError, match="no connection"), calling_ray():
        pass


@pytest.mark.usefixtures("connected")
def test_a_disconnect_waits_for_a_call_and_refuses_those_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(ray, "shutdown", ended.set)
    disconnect = threading.Thread(target=connect.disconnect_ray)
    with calling_ray():
        disconnect.start()
        assert not ended.wait(0.2)
    assert ended.wait(10)
    disconnect.join()
    with no_calls(), pytest.raises(InfrastructureError, match="no connection"), calling_ray():
        pass
    with calling_ray():
        pass


@pytest.mark.usefixtures("connected")
def test_nodes_that_do_not_answer_do_not_hold_a_disconnect_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waiting = threading.Event()

    def wait(asked: list[object], num_returns: int, timeout: float) -> tuple[list[object], list[object]]:
        waiting.set()
        threading.Event().wait(timeout)
        return [], asked

    class Task:
        def options(self, **_: object) -> Task:
            return self

        def remote(self, *_: object) -> object:
            return object()

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(node_logs, "WAIT_SECONDS", 0.05)
    nodes = RayNodes(tmp_path)
    errors = list[str]()
    monkeypatch.setattr(nodes, "_task", Task())

    def ask() -> None:
        try:
            nodes({LogSource("h2", "0" * 56, "d2" * 8): {}})
        except InfrastructureError as error:
            errors.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    assert waiting.wait(10)
    with no_calls():
        asking.join(node_logs.ANSWER_SECONDS / 2)
        assert errors == ["there is no connection to the cluster"]


class Cyclic:
    """Garbage once nobody else refers to it."""

    def __init__(self) -> None:
        self.itself = self


def test_no_garbage_is_collected_during_a_disconnect_and_none_is_left_before(monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = weakref.ref(Cyclic())
    seen = list[tuple[bool, bool]]()
    monkeypatch.setattr(ray, "shutdown", lambda: seen.append((garbage() is None, gc.isenabled())))
    connect.disconnect_ray()
    assert seen == [(True, False)] and gc.isenabled()


def test_no_garbage_is_collected_until_the_last_disconnect_is_over() -> None:
    with no_calls():
        with no_calls():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collection_of_another_thread_is_over_before_a_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    may_end = threading.Event()
    order = list[str]()

    def finalise() -> None:
        began.set()
        may_end.wait(10)
        order.append("collected")

    cyclic = Cyclic()
    weakref.finalize(cyclic, finalise)
    del cyclic
    collecting = threading.Thread(target=gc.collect)
    monkeypatch.setattr(ray, "shutdown", lambda: order.append("disconnected"))
    disconnecting = threading.Thread(target=connect.disconnect_ray)
    collecting.start()
    assert began.wait(10)
    disconnecting.start()
    disconnecting.join(0.1)
    may_end.set()
    collecting.join()
    disconnecting.join()
    assert order == ["collected", "disconnected"]
