"""The actor around an engine and its judges: which roles sleep while others work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.services import ROOT
from yatt_core.actors import rollout as module
from yatt_core.actors.rollout import RolloutActor
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.protocols.judges import JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.spec import load_spec

LoadedActor = Callable[..., RolloutActor]


@contextmanager
def serving(*_: object) -> Any:
    yield


@pytest.fixture
def loaded_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedActor:
    """Returns a function that builds a loaded actor without Ray, around a given engine and judges."""

    def make(engine: object, judges: Mapping[str, object], resident: bool = True) -> RolloutActor:
        monkeypatch.setattr(module, "Presence", lambda *_: SimpleNamespace(serving=serving))
        monkeypatch.setattr(module, "actor_logs", lambda *_: SimpleNamespace(name="rollout-0", pid=1, node="here"))
        monkeypatch.setattr(module, "build_rollout_engine", lambda *_: engine)
        monkeypatch.setattr(module, "load_judges", lambda *_: judges)
        actor = RolloutActor(load_spec(ROOT / "configs" / "genrm.yaml").model_dump_json(), str(tmp_path), 0, 1)
        actor.load(1, "", resident)
        return actor

    return make


@pytest.mark.parametrize(
    ("resident", "moved"),
    [(True, []), (False, ["policy sleeps", "judge wakes", "judge sleeps", "policy wakes"])],
)
def test_roles_sleep_while_others_work_if_memory_is_short(
    loaded_actor: LoadedActor, resident: bool, moved: list[str]
) -> None:
    log: list[str] = []

    def sleeper(name: str) -> Any:
        moves = {move: lambda move=move: log.append(f"{name} {move}s") for move in ("sleep", "wake")}
        return SimpleNamespace(**moves, capabilities={})

    actor = loaded_actor(sleeper("policy"), {"judge": sleeper("judge")}, resident)
    assert log == ([] if resident else ["policy sleeps"]), "before the judges are loaded"
    log.clear()
    actor.switch(1, JUDGE, False)
    actor.switch(1, ROLLOUT, False)
    assert log == moved
    log.clear()
    actor.rest(1)
    assert log == ["policy sleeps", "judge sleeps"], "all roles sleep while the trainer has the device"


def test_a_reward_model_reads_and_a_generating_judge_decodes(loaded_actor: LoadedActor) -> None:
    judges = {
        "reads": SimpleNamespace(judge=lambda _: [(Verdict(0, (Judgement("", 0.5, 0, 70),)),)]),
        "writes": SimpleNamespace(
            judge=lambda _: [(Verdict(0, (Judgement("yes", 1.0, 3, 70), Judgement("n", 0.0, 2, 70))),)]
        ),
    }
    actor = loaded_actor(SimpleNamespace(capabilities={}), judges)
    for part in judges:
        assert list(actor.judge(1, part, JudgeRequest((JudgeItem(0, "q", "a", None, (1,)),))))
    read, written = actor.usage(1)
    assert (read.prompt_tokens, read.steps, read.decode_s) == (70, 0, 0.0) and read.prefill_s > 0
    assert (written.steps, written.sequence_steps, written.prompt_tokens) == (3, 5, 0) and written.decode_s > 0
