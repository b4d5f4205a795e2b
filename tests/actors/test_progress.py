"""A deadline counts from the latest progress: slow work goes on, stuck work does not."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.actors.test_presence import FOR_EVER
from tests.control_store import FolderStore
from yatt_core import progress
from yatt_core.actors.presence import Presence
from yatt_core.actors.sampler import SamplerActor
from yatt_core.cluster.metering import UNINTERRUPTED, BytesMeter
from yatt_core.keys import WorkKey
from yatt_core.progress import advanced
from yatt_core.protocols.receipts import SampleTask, ShardRef
from yatt_core.run_actors import calls as calls_module
from yatt_core.run_actors.calls import ActorCalls


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_latest", None)


def calls_to(folder: Path, *trainers: str) -> tuple[ActorCalls, list[float]]:
    """Returns calls to actors of which these are trainers, and the list of extensions."""
    registry: Any = SimpleNamespace(
        names=[*trainers, "rollout-0"],
        names_of=lambda _role: trainers,
        require_current=lambda: None,
        store=FolderStore(folder),
    )
    calls = ActorCalls(registry, folder, BytesMeter(), UNINTERRUPTED, 5.0)
    extensions = []
    calls.extended = extensions.append
    return calls, extensions


def test_progress_is_reported_between_calls_too(tmp_path: Path) -> None:
    """An engine that waits for the next turn of a dialogue has just finished the last one."""
    presence = Presence("rollout-0", 1, FOR_EVER, FolderStore(tmp_path))
    assert presence.report().progressed is None
    with presence.serving("generate", 1):
        advanced()
    progressed = presence.report().progressed
    assert progressed is not None and 0.0 <= progressed < 5.0


def test_each_shard_that_a_sampler_has_sealed_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler draws all shards of its share in one call."""
    seen = []

    class Engine:
        def count_shards(self, task: SampleTask) -> int:
            raise AssertionError("nobody asks")

        def sample(self, task: SampleTask) -> ShardRef:
            seen.append(progress.seconds_since_progress() is not None)
            monkeypatch.setattr(progress, "_latest", None)
            return ShardRef(f"shard {task.key.shard}", "")

    actor: Any = SamplerActor.__new__(SamplerActor)
    actor._engine = Engine()
    actor._presence = SimpleNamespace(serving=lambda method, term: nullcontext())
    tasks = [SampleTask(WorkKey("run", 0, 1, "collect", shard=number), 1, 0, 0) for number in range(3)]
    assert [shard.folder for shard in actor.sample(1, tasks)] == ["shard 0", "shard 1", "shard 2"]
    assert seen == [False, True, True] and progress.seconds_since_progress() is not None


def test_a_wait_goes_on_while_a_trainer_advances(tmp_path: Path) -> None:
    presence = Presence("trainer-0", 1, FOR_EVER, FolderStore(tmp_path))
    calls, extensions = calls_to(tmp_path, "trainer-0")
    with presence.serving("sft", 1):
        assert calls.more_time(5.0, ["trainer-0"], "sft") == 0.0, "it has not taken a step yet"
        advanced()
        assert 0.0 < calls.more_time(60.0, ["trainer-0"], "sft") <= 60.0
        assert len(extensions) == 1, "the lease is told"
        time.sleep(0.3)
        assert calls.more_time(0.2, ["trainer-0"], "sft") == 0.0, "its latest step is too long ago"


def test_a_controllers_wait_goes_on_while_an_engine_advances_and_a_trainers_does_not(tmp_path: Path) -> None:
    presence = Presence("rollout-0", 1, FOR_EVER, FolderStore(tmp_path))
    calls, _ = calls_to(tmp_path, "trainer-0")
    with presence.serving("generate", 1):
        advanced()
        assert calls.more_time(60.0, ["controller-0"], "shards") > 0.0
        assert calls.more_time(60.0, ["trainer-0"], "learn") == 0.0


def test_a_call_that_is_slow_is_waited_for_and_one_that_is_stuck_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def unfinished(timeout: float, waiting_for: str, **_: Any) -> list[Any]:
        waits.append(timeout)
        if len(waits) == 3:
            return ["receipt"]
        raise calls_module.StuckError(f"{waiting_for}: not finished after {timeout:g} s")

    monkeypatch.setattr(calls_module, "metered_get", unfinished)
    calls, _ = calls_to(tmp_path, "trainer-0")
    more = iter([2.0, 1.0])
    monkeypatch.setattr(calls, "more_time", lambda *_: next(more))
    assert calls.get([None], "sft", ["trainer-0"]) == ["receipt"]
    assert waits == [5.0, 2.0, 1.0]


def test_how_far_an_actor_has_come_is_told_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading millions of rows takes minutes, in which a start must not look as if it were stuck."""
    presence = Presence("controller-0", 1, FOR_EVER, FolderStore(tmp_path))
    calls, _ = calls_to(tmp_path)
    words = iter(["100,000 rows read", "100,000 rows read", "200,000 rows read", ""])

    def ready(_references: Any, _timeout: float, _interruptions: Any) -> Any | None:
        latest = next(words)
        advanced(latest)
        return None if latest else "reference"

    monkeypatch.setattr(calls_module, "first_ready", ready)
    monkeypatch.setattr(calls_module, "metered_get", lambda **_: ["receipt"])
    told: list[str] = []
    with presence.serving("materialise", 1):
        assert calls.get(["reference"], "the inputs", ["controller-0"], 60.0, told.append) == ["receipt"]
    assert told == ["100,000 rows read", "200,000 rows read"]
