"""The owner of warm clusters and those who borrow them: real processes and sockets, services of a few lines in place of Ray."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from flows.run import lending, shared_cluster
from flows.run.home import Home
from flows.run.lending import (
    Ask,
    Ended,
    HeadNeeds,
    LentCluster,
    Request,
    borrow,
    borrowed_for_command,
    free_cluster,
    leave_kept,
)
from flows.run.shared_cluster import clear_abandoned, taken_cluster, use_folder
from ops.group import clusters as module
from ops.group.clusters import ClusterOwner
from tests.supervisor.support import script_service, supervised
from tests.waiting import wait_until
from yatt_core.errors import InfrastructureError
from yatt_core.supervisor.client import current_state, ensure_supervisor, served_request
from yatt_core.supervisor.process import send_signal
from yatt_core.supervisor.services import ServiceSpec, ServiceState
from yatt_core.supervisor.state import SupervisorState

RUN = "toy-1"
NEEDS = HeadNeeds(modules=("json",), store_bytes=7)


def head(
    folder: Path, object_store_bytes: int, modules: tuple[str, ...], torch_modules: tuple[str, ...]
) -> ServiceSpec:
    (folder / "logs").mkdir(exist_ok=True)
    return script_service(folder, f"# {object_store_bytes} {modules} {torch_modules}", name="ray")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    made = Home(tmp_path / ("deep" * 30) / "runs")
    made.group.mkdir(parents=True)
    made.run_folder(RUN).mkdir()
    monkeypatch.setattr(module, "ray_head_service", head)
    monkeypatch.setattr(module, "ROUND_SECONDS", 0.05)
    yield made
    clear_abandoned(made)


@contextmanager
def owner(home: Home, count: int = 1) -> Iterator[None]:
    """Runs an owner until the end of the block."""
    ended = threading.Event()
    thread = threading.Thread(target=ClusterOwner(home, count, ended).run)
    thread.start()
    try:
        wait_until(lambda: free_cluster(home) is not None and is_up(home), 60.0)
        yield
    finally:
        ended.set()
        thread.join()


def is_up(home: Home) -> bool:
    reply = free_cluster(home)
    state = None if reply is None else current_state(Path(reply.folder))
    return state is not None and state.service("ray").state is ServiceState.READY


def borrowed(home: Home, run: str = RUN, grace: float = 60.0) -> LentCluster:
    lent = borrow(home, run, grace, NEEDS)
    assert lent is not None
    return lent


def killed(lent: LentCluster) -> None:
    """Ends a driver's hold on a cluster as a kill does."""
    lent._held.close()
    lent.cluster.lock.close()


def test_a_head_is_lent_to_one_run_after_another(home: Home) -> None:
    assert borrow(home, RUN, 0.0, NEEDS) is None, "nobody owns clusters"
    with owner(home):
        lent = borrowed(home)
        state = current_state(lent.folder)
        assert state is not None
        assert free_cluster(home) is None
        assert borrow(home, "toy-2", 0.0, NEEDS) is None
        lent.give_back(Ended.WELL)
        wait_until(lambda: free_cluster(home) is not None, 10.0)
        again = borrowed(home, "toy-2")
        assert again.folder == lent.folder
        assert not again.reply.was_kept
        assert current_state(again.folder) == state, "its head was not started again"
        again.give_back(Ended.WELL)
        folder = again.folder
    assert not supervised(folder)
    assert not folder.exists()


def test_a_cluster_that_may_have_actors_left_ends_and_its_logs_stay(home: Home) -> None:
    with owner(home):
        lent = borrowed(home)
        lent.give_back(Ended.BADLY)
        wait_until(lambda: is_up(home), 60.0)
        assert not supervised(lent.folder)
        assert (lent.folder / "logs").exists()
        assert borrowed(home).folder != lent.folder


def test_a_killed_driver_leaves_its_cluster_to_the_runs_next_one(home: Home) -> None:
    with owner(home):
        lent = borrowed(home)
        killed(lent)
        wait_until(lambda: free_cluster(home, RUN) is not None, 10.0)
        assert free_cluster(home, "toy-2") is None
        again = borrowed(home)
        assert again.reply.was_kept
        assert again.folder == lent.folder
        assert supervised(again.folder)


def test_a_cluster_is_not_kept_for_longer_than_its_actors_wait(home: Home) -> None:
    with owner(home):
        lent = borrowed(home, grace=0.1)
        killed(lent)
        wait_until(lambda: is_up(home), 60.0)
        assert not supervised(lent.folder)
        assert (lent.folder / "logs").exists(), "they say what became of the driver"


def test_a_cluster_of_a_driver_that_was_killed_and_resumed_has_not_failed(home: Home) -> None:
    with owner(home):
        killed(borrowed(home))
        wait_until(lambda: free_cluster(home, RUN) is not None, 10.0)
        again = borrowed(home)
        again.give_back(Ended.WELL)
        wait_until(lambda: free_cluster(home) is not None, 10.0)
    assert not again.folder.exists()


def test_an_owner_that_can_take_no_other_cluster_still_ends_one_that_may_have_actors_left(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def refused(home: Home) -> Iterator[None]:
        raise InfrastructureError("the disk is full")
        yield

    with owner(home):
        lent = borrowed(home)
        with monkeypatch.context() as full:
            full.setattr(module, "taken_cluster", refused)
            lent.give_back(Ended.BADLY)
            wait_until(lambda: not supervised(lent.folder), 30.0)
            assert free_cluster(home) is None
        wait_until(lambda: is_up(home), 60.0)


def test_a_free_head_is_left_alone_as_long_as_it_is_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Path]()

    def ensure(folder: Path, services: list[ServiceSpec], grace: float) -> object:
        asked.append(folder)
        return ensure_supervisor(folder, services, grace)

    rounds = list[Path]()

    def look(folder: Path) -> SupervisorState | None:
        rounds.append(folder)
        return current_state(folder)

    monkeypatch.setattr(module, "ensure_supervisor", ensure)
    monkeypatch.setattr(module, "current_state", look)
    with owner(home):
        before = len(rounds)
        wait_until(lambda: len(rounds) > before + 3, 10.0)
    assert len(asked) == 1


def test_a_run_that_goes_on_elsewhere_or_is_deleted_leaves_no_actors(home: Home) -> None:
    with owner(home):
        lent = borrowed(home)
        use_folder(home.run_folder(RUN), lent.folder, term=1)
        leave_kept(home, RUN)
        assert supervised(lent.folder), "a driver uses it"
        killed(lent)
        wait_until(lambda: free_cluster(home, RUN) is not None, 10.0)
        leave_kept(home, RUN)
        assert not supervised(lent.folder)


def test_a_run_is_not_deleted_while_its_last_cluster_has_not_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lending.LEAVE_SECONDS > 2 * shared_cluster.STOP_SECONDS
    monkeypatch.setattr(lending, "LEAVE_SECONDS", 0.2)
    use_folder(home.run_folder(RUN), home.clusters / "host-0", term=1)
    with lending.socket_path(home) as path, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(path)
        deaf.listen()
        with pytest.raises(InfrastructureError, match=r"has not ended within 0\.2 s what the last driver of toy-1"):
            leave_kept(home, RUN)


def test_a_lent_lock_is_passed_on_only_on_purpose(home: Home) -> None:
    with owner(home):
        lent = borrowed(home)
        assert not os.get_inheritable(lent.cluster.lock.fileno())


def test_a_driver_that_was_replaced_gives_back_nothing(home: Home) -> None:
    with owner(home):
        first = borrowed(home)
        second = borrowed(home)
        assert second.folder == first.folder
        first.give_back(Ended.BADLY)
        assert supervised(second.folder)
        assert borrow(home, "toy-2", 0.0, NEEDS) is None
        second.give_back(Ended.WELL)
        wait_until(lambda: free_cluster(home) is not None, 10.0)


def test_a_driver_outlives_the_owner_and_ends_the_cluster(home: Home) -> None:
    with owner(home):
        lent = borrowed(home)
    assert supervised(lent.folder)
    with taken_cluster(home) as other:
        assert other.folder != lent.folder
    lent.give_back(Ended.WELL)
    assert not supervised(lent.folder)
    assert not lent.folder.exists()


def test_a_supervisor_that_is_killed_while_nobody_uses_it_is_replaced(home: Home) -> None:
    with owner(home):
        reply = free_cluster(home)
        assert reply is not None
        before = current_state(Path(reply.folder))
        assert before is not None
        send_signal(before.identity, 9)
        wait_until(
            lambda: (now := current_state(Path(reply.folder))) is not None and now.identity != before.identity, 60.0
        )


def test_the_next_head_suits_the_newest_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(folder: Path) -> str:
        served = served_request(folder)
        return "" if served is None else served.services[0].argv[-1]

    with owner(home):
        lent = borrowed(home)
        assert "'json'" not in command(lent.folder)
        lent.give_back(Ended.WELL)
        monkeypatch.setattr(module, "FREE_SECONDS", 0.0)
        wait_until(lambda: "'json'" in command(lent.folder), 60.0)


def test_what_a_driver_has_started_beside_the_head_ends_with_it(home: Home) -> None:
    with owner(home):
        lent = borrowed(home)
        ensure_supervisor(lent.folder, [script_service(lent.folder, "", name="prefect")], 60.0)
        lent.give_back(Ended.WELL)
        wait_until(lambda: (state := current_state(lent.folder)) is not None and list(state.services) == ["ray"], 60.0)


def test_a_command_lends_on_to_its_drivers_unless_its_environment_is_another(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(home):
        with borrowed_for_command(home) as cluster:
            assert cluster is not None
            os.fstat(cluster.lock.fileno())
            assert free_cluster(home) is None
        wait_until(lambda: free_cluster(home) is not None, 10.0)
        monkeypatch.setenv("A_KEY_OF_A_JUDGE", "secret")
        with borrowed_for_command(home) as cluster:
            assert cluster is None
        wait_until(lambda: free_cluster(home) is not None, 10.0)


def test_drivers_that_an_interrupted_command_leaves_keep_their_cluster_for_themselves(home: Home) -> None:
    with owner(home):
        with pytest.raises(KeyboardInterrupt), borrowed_for_command(home) as cluster:
            assert cluster is not None
            driver = os.dup(cluster.lock.fileno())
            raise KeyboardInterrupt
        wait_until(lambda: is_up(home), 60.0)
        assert borrowed(home).folder != cluster.folder
        assert supervised(cluster.folder), "a driver holds its lock"
        os.close(driver)


def test_requests_that_are_none_and_other_users_end_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with owner(home):
        known = lending.line_of(asdict(Request(Ask.BORROW, RUN, 1.0, NEEDS)))
        wrong = (known.replace(b'"store_bytes": 7', b'"store_bytes": "many"'), known.replace(b"1.0", b'"long"'))
        for text in (b"{}\n", b"1\n", b"[]\n", b'{"needs": 1}\n', b"no JSON\n", b"cut", *wrong):
            connection = lending._connected(home, 10.0)
            assert connection is not None
            with connection:
                connection.sendall(text)
        assert free_cluster(home) is not None
        for last in (b"1\n", b"[]\n", b'{"ended": "somehow"}\n'):
            lent = borrowed(home)
            lent._connection.sendall(last)
            killed(lent)
            wait_until(lambda: free_cluster(home, RUN) is not None, 10.0)
        lent = borrowed(home)
        lent.give_back(Ended.WELL)
        wait_until(lambda: free_cluster(home) is not None, 10.0)
        monkeypatch.setattr(module, "is_own", lambda connection: False)
        assert free_cluster(home) is None
        monkeypatch.setattr(module, "is_own", lambda connection: True)
        monkeypatch.setattr(lending, "is_own", lambda connection: False)
        assert borrow(home, RUN, 0.0, NEEDS) is None
        monkeypatch.setattr(lending, "is_own", lambda connection: True)


def test_several_heads_may_be_warm(home: Home) -> None:
    with owner(home, count=2):
        first = borrowed(home)
        second = borrowed(home, "toy-2")
        assert first.folder != second.folder
        assert borrow(home, "toy-3", 0.0, NEEDS) is None
