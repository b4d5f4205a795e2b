"""The actor around a virtual instance, without Ray: the role under which it reports its work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from yatt_core.actors import virtual as module
from yatt_core.actors.virtual import ContinuousActor
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.protocols.judges import JudgeItem, JudgeRequest
from yatt_core.spec import load_spec
from yatt_core.spent_time import ENGINE, TimeAccount

SPEC = Path(__file__).parents[1] / "specs" / "judged.yaml"


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContinuousActor:
    fence = SimpleNamespace(check=lambda term: None)
    monkeypatch.setattr(module, "actor_logs", lambda *_: SimpleNamespace(name="rollout-0"))
    monkeypatch.setattr(module, "Presence", lambda *_: SimpleNamespace(fence=fence, times=TimeAccount()))
    return ContinuousActor(load_spec(SPEC).model_dump_json(), str(tmp_path), 0, 1)


@pytest.mark.parametrize("told", [(), (ROLLOUT, JUDGE)])
def test_a_judgement_counts_as_judging_even_without_an_assigned_role(
    actor: ContinuousActor, told: tuple[str, ...]
) -> None:
    async def judged() -> int:
        for role in told:
            await actor.switch(1, role, starting=False)
        request = JudgeRequest((JudgeItem(0, "question", "answer", None, (1, 2)),))
        said = [verdict async for piece in actor.judge(1, "helpful", request) for verdict in piece]
        (row,) = await actor.usage(1)
        assert (row.role, row.sequence_steps) == (JUDGE, sum(one.tokens for one in said[0].judgements))
        return len(said)

    assert asyncio.run(judged()) == 1
    assert asyncio.run(actor.usage(1)) == (), "usage is reported once"


def test_what_an_instance_spends_on_a_call_is_reported_with_its_use_and_once(actor: ContinuousActor) -> None:
    async def judged() -> None:
        request = JudgeRequest((JudgeItem(0, "question", "answer", None, (1, 2)),))
        async for _ in actor.judge(1, "helpful", request):
            pass

    asyncio.run(judged())
    (one,) = asyncio.run(actor.process_use(1)).spent
    assert (one.path, one.kind, one.calls) == (("judge",), ENGINE, 1) and one.seconds > 0.0
    assert asyncio.run(actor.process_use(1)).spent == ()
