"""Roles of a pool's instances: which switch, and when; no batch waits for ever, whatever a runtime policy does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.matrix import examples
from tests.placement.recorded_run import judged_spec
from yatt_core.dispatch.pool import pool_setting
from yatt_core.dispatch.queue import AdmissionLimits, DispatchQueue
from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import JUDGE, ROLLOUT, HandOver, Intake, Switch, Take
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.curve import CurvePolicy, Knobs
from yatt_core.placement.policies.fixed import InTurn
from yatt_core.placement.seen import RuntimePolicy

ROLES = st.sampled_from([ROLLOUT, JUDGE])


class Changing(RuleBasedStateMachine):
    """Batches of both roles start and end, and instances are told to switch in every possible way."""

    @initialize(instances=st.integers(1, 4))
    def start(self, instances: int) -> None:
        self.queue = DispatchQueue([1.0] * instances)
        self.on_the_way: dict[int, str] = {}
        self.held: dict[int, tuple[int, str]] = {}

    @rule(role=ROLES, size=st.integers(1, 9))
    def submit(self, role: str, size: int) -> None:
        self.queue.submit("controller-0", size, role)

    @rule()
    def grant(self) -> None:
        for ticket, index in self.queue.grant():
            instance = self.queue.instances[index]
            assert instance.role == ticket.role and instance.ready and not instance.leaving
            self.held[ticket.number] = (index, ticket.role)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.release(number)
        del self.held[number]

    @rule(data=st.data(), role=ROLES, migrate=st.booleans())
    def hand_over(self, data: st.DataObject, role: str, migrate: bool) -> None:
        able = [i for i in self.queue.instances if i.ready and not i.leaving and i.role != role]
        if able:
            instance = data.draw(st.sampled_from(able))
            given_back = self.queue.apply(HandOver(instance.index, role, migrate))
            assert given_back == (instance.outstanding if migrate else 0)

    @rule(roles=st.lists(ROLES, min_size=4, max_size=4))
    def assign(self, roles: list[str]) -> None:
        self.queue.assign("".join(roles[: len(self.queue.instances)]), starting=True)

    @rule(kept=st.sets(st.integers(0, 3)))
    def keep(self, kept: set[int]) -> None:
        holding = dict(self.queue.keep(kept))
        for instance in self.queue.instances:
            assert instance.kept == (instance.index in kept)
            assert holding.get(instance.index, 0) == (instance.outstanding if instance.kept else 0)

    @rule()
    def begin_switches(self) -> None:
        for index, role in self.queue.switches():
            assert not self.queue.instances[index].held, "an instance switched while it held batches"
            self.on_the_way[index] = role

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def end_switch(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.on_the_way)))
        role = self.on_the_way.pop(index)
        afterwards = self.queue.instances[index].afterwards
        self.queue.switched(index)
        assert self.queue.instances[index].role == role
        assert self.queue.instances[index].joining == afterwards

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "queue"):
            for index, role in self.held.values():
                assert self.queue.instances[index].role == role, "an instance changed its role while it held a batch"

    def teardown(self) -> None:
        """Checks that everything that waits is served in the end."""
        if not hasattr(self, "queue"):
            return
        self.queue.keep(())
        waiting = self.queue.waiting(ROLLOUT) + self.queue.waiting(JUDGE)
        for _ in range(4 * waiting + 8):
            for action in self.queue.unserved():
                self.queue.apply(action)
            self.begin_switches()
            for index in sorted(self.on_the_way):
                self.on_the_way.pop(index)
                self.queue.switched(index)
            self.grant()
            for number in list(self.held):
                self.queue.release(number)
                del self.held[number]
        assert self.queue.waiting(ROLLOUT) == self.queue.waiting(JUDGE) == 0


Changing.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestChanging = Changing.TestCase


def test_a_busy_instance_switches_after_its_last_batch() -> None:
    queue = DispatchQueue([1.0, 1.0])
    ticket = queue.submit("a", 8)
    queue.grant()
    queue.apply(HandOver(0, JUDGE, migrate=False))
    assert queue.switches() == []
    queue.release(ticket.number)
    assert queue.switches() == [(0, JUDGE)]
    judged = queue.submit("a", 1, JUDGE)
    assert queue.grant() == [], "a switching instance takes no batches"
    queue.switched(0)
    assert queue.grant() == [(judged, 0)]


@pytest.mark.parametrize("action", [Switch(0, JUDGE), HandOver(0, ROLLOUT, False)])
def test_impossible_actions_are_refused(action: Switch | HandOver) -> None:
    queue = DispatchQueue([1.0])
    queue.submit("a", 8)
    queue.grant()
    with pytest.raises(ConfigurationError) as caught:
        queue.apply(action)
    assert str(action) in str(caught.value)


def test_an_intake_bounds_the_sequences_of_an_instance() -> None:
    queue = DispatchQueue([1.0, 1.0])
    queue.apply(Intake(0, 2))
    for _ in range(4):
        queue.submit("a", 2)
    assert [index for _, index in queue.grant()] == [0, 1, 1]
    queue.apply(Intake(0, None))
    assert [index for _, index in queue.grant()] == [0]


def test_others_are_taken_in_as_sequences_end() -> None:
    queue = DispatchQueue([1.0], {ROLLOUT: AdmissionLimits(None, 10)})
    first = queue.submit("a", 8)
    queue.submit("a", 4)
    assert len(queue.grant()) == 1
    queue.progress(first.number, 5)
    assert queue.instances[0].outstanding == 3 and len(queue.grant()) == 1


def test_slow_instances_get_a_smaller_share() -> None:
    queue = DispatchQueue([2.0, 1.0], {ROLLOUT: AdmissionLimits(None, None)})
    for _ in range(6):
        queue.submit("a", 1)
    assert sorted(index for _, index in queue.grant()) == [0, 0, 0, 0, 1, 1]


def test_a_judge_endpoint_is_not_a_device() -> None:
    queue = DispatchQueue([1.0, 1.0], roles=[ROLLOUT, "endpoint:helpful"])
    assert [instance.index for instance in queue.instances] == [0]
    asked = queue.submit("a", 3, "endpoint:helpful")
    assert queue.grant() == [(asked, 1)]
    queue.lose(asked.number)
    waiting = queue.submit("a", 3, "endpoint:helpful")
    assert queue.stranded() == [waiting]


def test_a_wave_is_drained_with_its_last_rollout_however_often_a_part_is_reported() -> None:
    queue = DispatchQueue([1.0])
    queue.begin_wave("w0", 8)
    queue.note("w0", "0/0", 4, 0)
    queue.note("w0", "0/0", 4, 2)
    queue.note("w7", "0/1", 4, 4)
    assert (queue.unrolled, queue.unjudged, queue.drained) == (4, 6, False)
    queue.note("w0", "0/1", 4, 4)
    assert (queue.unrolled, queue.unjudged, queue.drained) == (0, 2, True)


def test_an_instance_that_is_switching_when_an_iteration_begins_switches_back() -> None:
    queue = DispatchQueue([1.0])
    queue.apply(Switch(0, JUDGE))
    assert queue.switches() == [(0, JUDGE)]
    queue.assign(ROLLOUT, starting=True)
    queue.switched(0)
    assert queue.switches() == [(0, ROLLOUT)]
    queue.switched(0)
    assert (queue.instances[0].role, queue.instances[0].ready) == (ROLLOUT, True)


def test_an_instance_whose_role_differs_from_the_last_start_switches() -> None:
    queue = DispatchQueue([1.0, 1.0])
    queue.assign("RR", starting=True)
    assert queue.switches() == [], "there was no role before"
    queue.apply(Switch(1, JUDGE))
    assert queue.switches() == [(1, JUDGE)]
    queue.switched(1)
    queue.assign("RJ", starting=True)
    assert queue.switches() == [(1, JUDGE)], "it already judges, but training used it in between"
    queue.switched(1)
    queue.assign("RJ", starting=True)
    assert queue.switches() == []
    queue.assign("RR", starting=False)
    queue.assign("RJ", starting=True)
    assert queue.switches() == [(1, ROLLOUT)] and queue.instances[1].afterwards == JUDGE


def test_a_successor_takes_the_role_its_predecessor_was_switching_to() -> None:
    queue = DispatchQueue([1.0, 1.0])
    queue.apply(Switch(1, JUDGE))
    queue.fail(1)
    queue.renew(1)
    assert queue.switches() == [] and queue.instances[1].role == JUDGE


def test_a_take_is_limited_to_the_existing_sequences() -> None:
    queue = DispatchQueue([1.0])
    queue.submit("a", 3)
    queue.grant()
    assert queue.apply(Take(0, 9)) == 3


@pytest.mark.parametrize(("moved", "handed"), [(None, 2), (9, 2), (5, 1), (4, 0)])
def test_instances_are_handed_over_as_far_as_others_have_room_for_moved_sequences(
    moved: int | None, handed: int
) -> None:
    known = pool_setting(judged_spec("rollout.engine.instances=4"))
    room = known.rollout.model_copy(update={"max_concurrent": 64})
    policy = CurvePolicy(Knobs(1, 0.5, 1.0, 0.0), "RRRJ", replace(known, rollout=room, moved=moved))
    queue = DispatchQueue([1.0] * 4, roles="RRRJ")
    queue.begin_wave("w0", 100)
    queue.note("w0", "0/0", 91, 0)
    for _ in range(3):
        queue.submit("controller-0", 3)
    assert len(queue.grant()) == 3
    queue.submit("controller-0", 9, JUDGE)
    actions = policy.act(Moment.TICK, queue)
    assert sum(isinstance(action, HandOver) for action in actions) == handed


@pytest.mark.parametrize(
    ("roles", "moment", "runtime_policy"),
    [
        (
            "RJ",
            Moment.TICK,
            CurvePolicy(Knobs(1, 0.5, 1.0, 0.0), "RJ", pool_setting(judged_spec("rollout.engine.instances=2"))),
        ),
        ("RR", Moment.DRAINED, InTurn()),
        ("JJ", Moment.WAVE, InTurn()),
    ],
)
def test_a_finished_instance_switches_once_its_batch_is_released(
    roles: str, moment: Moment, runtime_policy: RuntimePolicy
) -> None:
    """Controllers report ended samples before they release a batch; a runtime policy may act between the two."""
    before, after = (ROLLOUT, JUDGE) if roles[0] == ROLLOUT else (JUDGE, ROLLOUT)
    queue = DispatchQueue([1.0, 1.0], roles=roles)
    queue.begin_wave("w0", 4)
    queue.submit("controller-0", 4, before)
    ((held, index),) = queue.grant()
    queue.note("w0", "0/0", 4, 0)
    queue.submit("controller-0", 4, after)
    for action in runtime_policy.act(moment, queue):
        queue.apply(action)
    assert index not in dict(queue.switches())
    queue.release(held.number)
    assert dict(queue.switches()).get(index) == after


def test_a_kept_instance_gets_no_work_until_it_is_lent_again() -> None:
    queue = DispatchQueue([1.0, 1.0])
    first = queue.submit("a", 8)
    queue.submit("a", 4)
    assert [index for _, index in queue.grant()] == [0, 1]
    assert queue.keep([0]) == [(0, 8)], "what it holds may go on elsewhere"
    assert not queue.instances[0].ready
    queue.release(first.number)
    late = queue.submit("a", 8)
    assert [index for _, index in queue.grant()] == [1]
    queue.submit("a", 8)
    assert queue.grant() == []
    queue.renew(0)
    assert queue.grant() == [], "nor does its successor"
    queue.keep(())
    assert [index for _, index in queue.grant()] == [0] and queue.waiting(ROLLOUT) == 0 and late.number == 3


def test_an_iteration_begins_without_kept_instances() -> None:
    queue = DispatchQueue([1.0, 1.0])
    queue.keep([1])
    queue.assign("RR", starting=False)
    assert queue.instances[1].kept
    queue.assign("RR", starting=True)
    assert not queue.instances[1].kept


def test_kept_instances_do_not_hide_a_standstill() -> None:
    queue = DispatchQueue([1.0, 1.0, 1.0], roles="RJJ")
    queue.keep([0])
    queue.submit("a", 2)
    assert queue.grant() == []
    assert queue.unserved() == [Switch(1, ROLLOUT), Switch(2, ROLLOUT)]
