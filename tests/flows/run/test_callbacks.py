"""Callbacks: found by name, told in order, and unable to end or delay a session; failures are warned of once and counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from flows.run import callbacks
from flows.run.callbacks import FAILED, CallbackObserver, Commit, End, find_callbacks, with_callbacks
from flows.run.protocols import IterationSummary, SilentObserver
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.callbacks import CallbackSpec

HERE = __name__


class Remembering(SilentObserver):
    """Remembers commits and warnings."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.warnings: list[str] = []

    def committed(self, summary: IterationSummary) -> None:
        self.seen.append(summary.iteration)

    def warned(self, text: str) -> None:
        self.warnings.append(text)


class Told:
    """A callback that remembers what it is told."""

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.told: list[Commit | End] = []
        self.fails = set(fails)

    def on_commit(self, commit: Commit) -> None:
        self.told.append(commit)
        if commit.iteration in self.fails:
            raise RuntimeError(f"no place for {commit.iteration}")

    def on_end(self, end: End) -> None:
        self.told.append(end)


class EndOnly:
    def __init__(self) -> None:
        self.told: list[End] = []

    def on_end(self, end: End) -> None:
        self.told.append(end)


class Neither:
    pass


class NotMade:
    def __init__(self) -> None:
        raise ValueError("no address")


def commit(iteration: int) -> IterationSummary:
    return IterationSummary(iteration, 3, {"reward/mean": iteration / 10}, 0.5)


def test_callbacks_are_told_in_order_and_the_observer_too() -> None:
    told = Told()
    end_only = EndOnly()
    inner = Remembering()
    observer = CallbackObserver(inner, "toy-1", [("told", told), ("end", end_only)])
    for iteration in range(4):
        observer.committed(commit(iteration))
    observer.close(End("toy-1", "completed", "target reached"))
    assert inner.seen == [0, 1, 2, 3]
    assert told.told[1] == Commit("toy-1", 1, 3, {"reward/mean": 0.1}, 0.5)
    assert [type(each) for each in told.told] == [Commit] * 4 + [End]
    assert end_only.told == [End("toy-1", "completed", "target reached")] and not observer.failures


def test_what_a_callback_raises_is_warned_of_once_and_counted() -> None:
    told = Told(fails=(1, 2))
    other = Told()
    inner = Remembering()
    observer = CallbackObserver(inner, "toy-1", [("mine", told), ("other", other)])
    for iteration in range(4):
        observer.committed(commit(iteration))
    observer.close(None)
    assert observer.failures == {"mine": 2} and len(other.told) == 4
    (warning,) = inner.warnings
    assert (
        "callback mine: on_commit failed" in warning and "no place for 1" in warning and "test_callbacks.py" in warning
    )


def test_a_callback_cannot_change_what_the_session_goes_on_with() -> None:
    class Changing:
        def on_commit(self, commit: Commit) -> None:
            commit.metrics["reward/mean"] = 7.0  # type: ignore[index]

    observer = CallbackObserver(SilentObserver(), "toy-1", [("changing", Changing())])
    summary = commit(1)
    observer.committed(summary)
    observer.close(None)
    assert summary.metrics == {"reward/mean": 0.1}


def test_a_callback_that_hangs_delays_the_end_for_a_limited_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(callbacks, "WAITING", 2)
    goes_on = threading.Event()

    class Hanging:
        def on_commit(self, commit: Commit) -> None:
            goes_on.wait(60)

    inner = Remembering()
    observer = CallbackObserver(inner, "toy-1", [("hanging", Hanging())])
    for iteration in range(5):
        observer.committed(commit(iteration))
    observer.close(None)
    goes_on.set()
    assert inner.seen == [0, 1, 2, 3, 4] and observer.failures["hanging"] >= 2
    assert any("dropped" in text for text in inner.warnings) and "not finished" in inner.warnings[-1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (f"{HERE}:Tolt", {}, "did you mean 'Told'"),
        (f"{HERE}:Told", {"failing": 1}, "cannot be made: TypeError"),
        (f"{HERE}:NotMade", {}, "no address"),
        (f"{HERE}:Neither", {}, "Neither has neither on_commit nor on_end"),
        ("nothing", {}, "not an entry point of 'yatt.callbacks'"),
    ],
)
def test_a_callback_that_cannot_be_used_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=r"callbacks\.0\.function") as caught:
        find_callbacks([CallbackSpec(function=name, options=options)])
    assert message in str(caught.value)


def test_the_end_is_told_and_failures_are_in_the_audit_chain(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    spec = toy_spec()
    with Ledger.open(address) as ledger:
        run = ledger.runs.create("toy", spec.model_dump(mode="json"), spec.digest, 4).id
    named = [CallbackSpec(function=f"{HERE}:Told", options={"fails": [1]})]
    with pytest.raises(KeyError), with_callbacks(SilentObserver(), run, named, address) as (observer, _):
        observer.committed(commit(1))
        raise KeyError("gone")
    with Ledger.open(address) as ledger:
        (event,) = ledger.browse.events(run, 5, kinds=(FAILED,))
    assert event.body == {f"{HERE}:Told": 1}


def test_without_callbacks_the_observer_is_the_sessions_own() -> None:
    inner = SilentObserver()
    with with_callbacks(inner, "toy-1", (), "sqlite://") as (observer, _):
        assert observer is inner


def test_a_ledger_that_is_away_does_not_hide_the_error_of_the_session(tmp_path: Path) -> None:
    named = [CallbackSpec(function=f"{HERE}:Told", options={"fails": [1]})]
    address = f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}"
    with pytest.raises(KeyError), with_callbacks(SilentObserver(), "toy-1", named, address) as (observer, _):
        observer.committed(commit(1))
        raise KeyError("gone")
