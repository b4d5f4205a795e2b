"""The actor around an engine that serves several calls at once: concurrent and serial work, and reported usage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.services import ROOT
from yatt_core.actors import concurrent_rollout as module
from yatt_core.actors import rollout as base
from yatt_core.actors.concurrent_rollout import ConcurrentRolloutActor
from yatt_core.dispatch.pool import WORK_THREADS, dispatch_limits, pool_setting
from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import JUDGE
from yatt_core.placement.actions import ROLLOUT as ROLLING
from yatt_core.placement.seen import Usage
from yatt_core.protocols.engines import EngineWork
from yatt_core.protocols.receipts import BATCHES_BY_CHANCE
from yatt_core.run_actors.actor_registry import CONCURRENT_ROLLOUT, CONTINUOUS, ROLLOUT, _rollout_class
from yatt_core.spec import load_spec

SECONDS = 20.0
VLLM = "rollout.engine={kind: vllm, instances: 1, dtype: float32, max_num_seqs: 64}"


class SharedEngine:
    """An engine that answers a call only once a second call has arrived."""

    def __init__(self) -> None:
        self.capabilities = {"batch_invariant": True}
        self.together = threading.Barrier(2)
        self.work = EngineWork(5, 40, 0.5)
        self.is_lost = self.closed = False

    def stream(self, request: Any) -> Iterator[None]:
        self.together.wait(SECONDS)
        yield None

    def close(self) -> None:
        self.closed = True

    def take_work(self) -> EngineWork:
        done = self.work
        self.work = EngineWork()
        return done


class LonelyJudge:
    """A judge that notices if it is called while it is busy."""

    def __init__(self) -> None:
        self.busy = False
        self.disturbed = False

    def judge(self, request: Any) -> Iterator[tuple[()]]:
        self.disturbed |= self.busy
        self.busy = True
        threading.Event().wait(0.05)
        self.busy = False
        yield ()


@contextmanager
def serving(*_: object) -> Iterator[None]:
    yield


@pytest.fixture
def engine() -> SharedEngine:
    return SharedEngine()


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: SharedEngine) -> ConcurrentRolloutActor:
    judge = LonelyJudge()
    monkeypatch.setattr(base, "Presence", lambda *_: SimpleNamespace(serving=serving))
    monkeypatch.setattr(base, "actor_logs", lambda *_: SimpleNamespace(name="rollout-0", pid=1, node="here"))
    monkeypatch.setattr(base, "build_rollout_engine", lambda *_: engine)
    monkeypatch.setattr(base, "load_judges", lambda *_: {"judge": judge})
    monkeypatch.setattr(module, "ServedRolloutEngine", SharedEngine)
    spec = load_spec(ROOT / "configs" / "genrm.yaml", [VLLM])
    actor = ConcurrentRolloutActor(spec.model_dump_json(), str(tmp_path), 0, 1)
    actor.load(1, "", True)
    return actor


def all_at_once(*calls: Any) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for answer in [pool.submit(lambda call=call: list(call())) for call in calls]:
            answer.result(SECONDS)


@pytest.mark.parametrize("exact", [True, False, "auto"])
def test_an_exact_run_refuses_an_engine_whose_answers_depend_on_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool | str
) -> None:
    loose = SharedEngine()
    loose.capabilities["batch_invariant"] = False
    monkeypatch.setattr(base, "Presence", lambda *_: SimpleNamespace(serving=serving))
    monkeypatch.setattr(base, "actor_logs", lambda *_: SimpleNamespace(name="rollout-0", pid=1, node="here"))
    monkeypatch.setattr(base, "build_rollout_engine", lambda *_: loose)
    monkeypatch.setattr(base, "load_judges", lambda *_: {})
    spec = load_spec(ROOT / "configs" / "genrm.yaml", [VLLM, f"exact={str(exact).lower()}"])
    actor = ConcurrentRolloutActor(spec.model_dump_json(), str(tmp_path), 0, 1)
    with pytest.raises(ConfigurationError, match=r"^exact: .*rollout\.engine") if exact is True else nullcontext():
        assert actor.load(1, "", True).capabilities[BATCHES_BY_CHANCE]


def test_decode_batches_are_answered_concurrently(actor: ConcurrentRolloutActor, engine: SharedEngine) -> None:
    request: Any = SimpleNamespace(weight_version=0)
    all_at_once(lambda: actor.generate(1, request, 1), lambda: actor.generate(1, request, 2))
    assert not engine.together.broken


def test_a_judge_that_serves_one_call_at_a_time_is_called_serially(actor: ConcurrentRolloutActor) -> None:
    all_at_once(*[lambda: actor.judge(1, "judge", None)] * 4)
    assert not actor._judges["judge"].disturbed


def test_usage_is_what_the_engine_reports(actor: ConcurrentRolloutActor, engine: SharedEngine) -> None:
    assert actor.usage(1) == (Usage(0, ROLLING, 5, 40, decode_s=0.5),)
    assert actor.usage(1) == ()
    judged = SimpleNamespace(engine=SharedEngine(), judge=lambda _: iter([()]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GenerativeJudge", SimpleNamespace)
        actor._judges["judge"] = judged
        assert actor.usage(1) == (Usage(0, JUDGE, 5, 40, decode_s=0.5),)


def test_engines_are_built_again_once_the_process_of_one_has_ended(
    actor: ConcurrentRolloutActor, engine: SharedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    successor = SharedEngine()
    judge = actor._judges["judge"]
    monkeypatch.setattr(base, "build_rollout_engine", lambda *_: successor)
    monkeypatch.setattr(base, "load_judges", lambda *_: {"judge": LonelyJudge()})
    actor._held = "transfer 3"
    actor.load(1, "", True)
    assert actor._engine is engine and actor._judges["judge"] is judge and not engine.closed
    assert actor.held_transfer(1) == "transfer 3"
    engine.is_lost = True
    actor.load(1, "", True)
    assert actor._engine is successor and actor._judges["judge"] is not judge and engine.closed
    assert actor.held_transfer(1) == "", "the new engine has no base for changes"


def test_only_real_engines_with_continuous_batching_use_it() -> None:
    shared = load_spec(ROOT / "configs" / "genrm.yaml", [VLLM])
    assert _rollout_class(shared) == CONCURRENT_ROLLOUT
    limits = dispatch_limits(shared)[ROLLING]
    assert (limits.batches, limits.sequences) == (WORK_THREADS, 64), (
        "no batch may wait inside Ray, where it is invisible"
    )
    assert not pool_setting(shared).migrates, "an interrupted response would restart from the beginning"
    assert pool_setting(shared).moved is None
    torch = load_spec(
        ROOT / "configs" / "genrm.yaml", ["rollout.engine={kind: torch, continuous: true, max_num_seqs: 64}"]
    )
    assert pool_setting(torch).moved == WORK_THREADS, "a moved response is a batch of its own, which has a thread"
    calling = load_spec(
        ROOT / "configs" / "tools.yaml", ["rollout.engine={kind: torch, continuous: true, max_num_seqs: 64}"]
    )
    assert dispatch_limits(calling)[ROLLING].batches == 64, "so is a later turn of a response"
    assert _rollout_class(load_spec(ROOT / "configs" / "genrm.yaml")) == ROLLOUT
    virtual = load_spec(ROOT / "tests" / "specs" / "judged.yaml")
    assert _rollout_class(virtual) == CONTINUOUS and pool_setting(virtual).migrates
    assert pool_setting(virtual).moved is None
