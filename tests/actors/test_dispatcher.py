"""The dispatcher carries out a placement: roles change as its runtime policy says; a failing policy fails no run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from yatt_core.actors import dispatcher as module
from yatt_core.actors.dispatcher import Dispatcher
from yatt_core.placement.actions import JUDGE, KEEPS, LENDS, ROLLOUT, Action, HandOver, Intake, Switch, Take
from yatt_core.placement.moments import Moment
from yatt_core.placement.occupancy import changes_of, switch_times
from yatt_core.placement.policies.fixed import Hold, InTurn
from yatt_core.placement.seen import PoolSeen
from yatt_core.spec import load_spec

SPEC = Path(__file__).parent.parent / "specs" / "judged.yaml"


class Engine:
    """An engine that takes up a role as soon as `may_switch` is set.

    roles: the roles that it took up, in order.
    """

    def __init__(self, number: int) -> None:
        self._actor_id = number
        self.roles = list[str]()
        self.switch = SimpleNamespace(remote=self._switch)
        self.may_switch = asyncio.Event()
        self.may_switch.set()

    async def _switch(self, term: int, role: str, starting: bool) -> None:
        await self.may_switch.wait()
        self.roles.append(role)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Dispatcher, list[Engine]]:
    fence = SimpleNamespace(check=lambda term: None, term=1)
    monkeypatch.setattr(module, "actor_logs", lambda *_: None)
    monkeypatch.setattr(module, "Presence", lambda *_: SimpleNamespace(fence=fence))
    return Dispatcher(load_spec(SPEC).model_dump_json(), str(tmp_path), 0, 1), [Engine(number) for number in range(4)]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_roles_are_taken_in_turn_when_a_wave_is_drained(pool: tuple[Dispatcher, list[Engine]]) -> None:
    dispatcher, engines = pool

    async def wave() -> None:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, ROLLOUT * 4, InTurn(), True)
        await dispatcher.begin_wave(1, "w0", 8)
        rolled = asyncio.ensure_future(dispatcher.acquire(1, "controller-0", 8, ROLLOUT, False))
        await settled()
        number, _, _ = rolled.result()
        judging = asyncio.ensure_future(dispatcher.acquire(1, "controller-0", 8, JUDGE, False))
        await dispatcher.release(number)
        assert not judging.done() and not any(engine.roles for engine in engines)
        await dispatcher.note("w0", "0/0", 8, 0)
        await settled()
        assert judging.done() and all(engine.roles == [JUDGE] for engine in engines)
        await dispatcher.note("w0", "0/0", 8, 8)
        report = await dispatcher.report()
        assert report.collect_s > 0 and not report.defect
        assert [line["do"] for line in report.actions].count("switch") == 4
        measured = switch_times(changes_of(ROLLOUT * 4, report.actions))
        assert len(measured) == 4 and all(each.seconds > 0 and not each.starting for each in measured)

    asyncio.run(wave())


def test_it_notes_from_when_the_trainer_keeps_a_device_and_when_it_lends_it(
    pool: tuple[Dispatcher, list[Engine]],
) -> None:
    dispatcher, engines = pool

    async def iteration() -> list[dict[str, Any]]:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, ROLLOUT * 4, Hold(), True)
        for kept in ((0, 1), (0, 1), (1,), ()):
            await dispatcher.keep(1, kept)
        return (await dispatcher.report()).actions

    lines = asyncio.run(iteration())
    assert [(line["do"], line["instance"]) for line in lines] == [
        (KEEPS, 0), (KEEPS, 1), (LENDS, 0), (LENDS, 1),
    ]  # fmt: skip
    assert sorted(line["t"] for line in lines) == [line["t"] for line in lines]


class Broken:
    """A runtime policy that asks for something impossible, or raises an error, whenever it is called."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return [self._answer]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (KeyError("nothing"), "KeyError: 'nothing'"),
        (Switch(0, ROLLOUT), "Switch(instance=0, role='R')"),
        (Switch(0, "X"), "R, J"),
        (HandOver(2, "", True), "R, J"),
        (Switch(4, JUDGE), "0 to 3"),
        (Switch(-4, JUDGE), ": -4 "),
        (Intake(0, "many"), ": 'many' "),  # type: ignore[arg-type]
        (Take(0, -3), ": -3 "),
        (Take(0, 0.5), ": 0.5 "),  # type: ignore[arg-type]
        (42, "42 is not an action"),
    ],
)
def test_a_failing_runtime_policy_is_reported_and_work_continues(
    pool: tuple[Dispatcher, list[Engine]], answer: Any, said: str
) -> None:
    dispatcher, engines = pool

    async def wave() -> Any:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, "RRJJ", Broken(answer), True)
        await settled()
        await dispatcher.begin_wave(1, "w0", 8)
        granted = await asyncio.wait_for(dispatcher.acquire(1, "controller-0", 4, ROLLOUT, False), 5)
        assert granted[1] in (0, 1)
        assert (await asyncio.wait_for(dispatcher.acquire(1, "controller-0", 4, JUDGE, False), 5))[1] in (2, 3)
        return await dispatcher.report()

    report = asyncio.run(wave())
    assert said in report.defect
    assert not [line for line in report.actions if line["do"] == "switch"], (
        "an impossible action must not be carried out"
    )


def test_numpy_numbers_of_a_runtime_policy_are_logged_as_plain_numbers(pool: tuple[Dispatcher, list[Engine]]) -> None:
    dispatcher, engines = pool

    async def wave() -> Any:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, "RRJJ", Broken(HandOver(np.int64(0), JUDGE, np.bool_(True))), True)  # type: ignore[arg-type]
        await dispatcher.begin_wave(1, "w0", 8)
        await settled()
        return await dispatcher.report()

    report = asyncio.run(wave())
    assert engines[0].roles == [JUDGE]
    (asked,) = [line for line in json.loads(json.dumps(report.actions)) if line["do"] == "handover"]
    assert (asked["instance"], asked["migrate"]) == (0, True)


def test_a_wave_that_begins_again_has_one_ticker(pool: tuple[Dispatcher, list[Engine]]) -> None:
    dispatcher, engines = pool

    async def beats() -> int:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, "RRJJ", Hold(), True)
        for _ in range(3):
            await dispatcher.begin_wave(1, "w0", 8)
        ticking = [t for t in asyncio.all_tasks() if getattr(t.get_coro(), "__qualname__", "") == "Dispatcher._tick"]
        await settled()
        return sum(not task.done() for task in ticking)

    assert asyncio.run(beats()) == 1


@pytest.mark.parametrize(("lasts", "expected"), [(0.3, [1, 2, 3, 4]), (1.3, [1, 3, 5, 7])])
def test_control_periods_count_from_the_start_of_the_wave(
    pool: tuple[Dispatcher, list[Engine]], monkeypatch: pytest.MonkeyPatch, lasts: float, expected: list[int]
) -> None:
    dispatcher, _ = pool
    now = 1000.0
    acted = list[float]()

    class Slow:
        def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
            nonlocal now
            acted.append((now - 1000.0) / dispatcher._period)
            now += lasts * dispatcher._period
            if len(acted) == len(expected):
                dispatcher._queue.note("w0", "0/0", 8, 8)
            return ()

    async def passing(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(module.asyncio, "sleep", passing)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    dispatcher._runtime_policy = Slow()
    dispatcher._queue.begin_wave("w0", 8)
    asyncio.run(dispatcher._tick())
    assert acted == pytest.approx(expected)


def test_a_wave_that_was_already_made_has_no_judging_time(pool: tuple[Dispatcher, list[Engine]]) -> None:
    dispatcher, engines = pool

    async def wave() -> Any:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, "RRJJ", Hold(), True)
        await settled()
        await dispatcher.begin_wave(1, "w0", 8)
        await asyncio.sleep(0.01)
        await dispatcher.note("w0", "0/0", 8, 8)
        return await dispatcher.report()

    report = asyncio.run(wave())
    assert report.collect_s > 0.0 == report.judging_s


def test_a_replaced_instances_failed_switch_does_not_affect_its_successor(
    pool: tuple[Dispatcher, list[Engine]],
) -> None:
    dispatcher, engines = pool

    class Dies(Engine):
        async def _switch(self, term: int, role: str, starting: bool) -> None:
            await self.may_switch.wait()
            raise ray.exceptions.RayActorError

    async def wave() -> int:
        dies = Dies(4)
        successor = Engine(5)
        dies.may_switch.clear()
        await dispatcher.engage(1, [dies, *engines[1:]])
        await dispatcher.place(1, "JRRR", Hold(), True)
        await settled()
        await dispatcher.engage(1, [successor, *engines[1:]])
        dies.may_switch.set()
        await settled()
        _, index, _ = await asyncio.wait_for(dispatcher.acquire(1, "controller-0", 4, JUDGE, False), 5)
        return index

    assert asyncio.run(wave()) == 0


class SwitchesInSequence:
    """Instances 0 and 1 take no rollouts until instance 2 has switched to them.

    Then instance 1, which is idle, is allowed to take rollouts, and at the same time told to switch to judging.
    """

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        if moment is Moment.WAVE:
            return [Intake(0, 0), Intake(1, 0), Switch(2, ROLLOUT)]
        if moment is Moment.SWITCHED and pool.instances[1].role == ROLLOUT and pool.instances[2].role == ROLLOUT:
            return [Intake(1, None), Switch(1, JUDGE)]
        return []


def test_an_instance_about_to_switch_gets_no_work(pool: tuple[Dispatcher, list[Engine]]) -> None:
    dispatcher, engines = pool

    async def wave() -> Any:
        await dispatcher.engage(1, engines)
        await dispatcher.place(1, "RRJJ", SwitchesInSequence(), True)
        await settled()
        engines[2].may_switch.clear()
        await dispatcher.begin_wave(1, "w0", 8)
        batches = asyncio.gather(*(dispatcher.acquire(1, "controller-0", 4, ROLLOUT, False) for _ in range(2)))
        await settled()
        engines[2].may_switch.set()
        assert [index for _, index, _ in await asyncio.wait_for(batches, 5)] == [2, 2]
        await settled()
        return await dispatcher.report()

    assert not asyncio.run(wave()).defect and engines[1].roles == [JUDGE]


class Handing(Engine):
    """An engine that can hand over and give up. given_up: the numbers that it was told, in order."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.given_up = list[int]()
        self.give_up = SimpleNamespace(remote=self._give_up)
        self.evict = SimpleNamespace(remote=self._evict)

    async def _give_up(self, term: int, numbers: Sequence[int]) -> None:
        self.given_up += numbers

    async def _evict(self, term: int, count: int) -> None:
        raise AttributeError("a defect")


@pytest.mark.parametrize("cut", [False, True])
def test_an_engine_gives_up_the_calls_of_an_owner_that_is_forgotten(
    pool: tuple[Dispatcher, list[Engine]], cut: bool
) -> None:
    """A cut takes nothing from an owner that may not hear of it; what it held is given up once the owner is forgotten."""
    dispatcher, others = pool
    handing = Handing(0)

    async def given_up() -> tuple[int, int]:
        await dispatcher.engage(1, [handing, *others[1:]])
        await dispatcher.place(1, "RJJJ", Hold(), True)
        await settled()
        number, _, _ = await dispatcher.acquire(1, "controller-0", 4, ROLLOUT, False)
        other, _, _ = await dispatcher.acquire(1, "controller-1", 4, ROLLOUT, False)
        await dispatcher.acquire(1, "controller-0", 4, JUDGE, False)
        if cut:
            await dispatcher.cut(1, ["controller-0"])
            await settled()
            assert not handing.given_up
        await dispatcher.forget("controller-0")
        await settled()
        assert handing.given_up == [number]
        await dispatcher.retain([])
        await settled()
        return number, other

    assert asyncio.run(given_up()) == tuple(handing.given_up)


def test_an_engine_without_evictions_is_not_asked_and_defects_of_others_are_not_hidden(
    pool: tuple[Dispatcher, list[Engine]], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, others = pool
    asyncio.run(dispatcher.engage(1, [Handing(0), *others[1:]]))
    asyncio.run(dispatcher._evict(1, 2))
    assert not caplog.records
    with pytest.raises(AttributeError, match="a defect"):
        asyncio.run(dispatcher._evict(0, 2))
