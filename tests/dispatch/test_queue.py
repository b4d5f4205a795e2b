"""The dispatch queue: late binding to the least loaded engine, first come first served, within the slots."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.matrix import examples
from yatt_core.dispatch.queue import AdmissionLimits, DispatchQueue, Ticket
from yatt_core.placement.actions import JUDGE, ROLLOUT, HandOver

OWNERS = st.sampled_from(["controller-0", "controller-1", "controller-2"])


def pool(engines: int, slots: int = 2) -> DispatchQueue:
    """Returns a queue for instances of equal speed that all roll out, with `slots` slots each."""
    return DispatchQueue([1.0] * engines, {ROLLOUT: AdmissionLimits(batches=slots)})


def outstanding(queue: DispatchQueue) -> list[int]:
    """Returns the number of sequences in progress by instance."""
    return [instance.outstanding for instance in queue.instances]


class Dispatching(RuleBasedStateMachine):
    """The model: which batches wait, in order, and which engine holds which batches."""

    @initialize(engines=st.integers(1, 4), slots=st.integers(1, 3))
    def start(self, engines: int, slots: int) -> None:
        self.queue = pool(engines, slots)
        self.slots = slots
        self.waiting: list[Ticket] = []
        self.held: list[dict[int, Ticket]] = [{} for _ in range(engines)]

    def loads(self) -> list[int]:
        return [sum(ticket.size for ticket in held.values()) for held in self.held]

    @rule(owner=OWNERS, size=st.integers(1, 64))
    def submit(self, owner: str, size: int) -> None:
        ticket = self.queue.submit(owner, size)
        assert (ticket.owner, ticket.size) == (owner, size)
        assert ticket.number not in {t.number for t in self.waiting} | {n for held in self.held for n in held}
        self.waiting.append(ticket)

    @rule()
    def grant(self) -> None:
        for ticket, index in self.queue.grant():
            assert ticket == self.waiting.pop(0), "not first come, first served"
            free = [i for i, held in enumerate(self.held) if len(held) < self.slots]
            assert index in free, "an engine holds more than its slots"
            assert self.loads()[index] == min(self.loads()[i] for i in free), (
                "not the least loaded engine with a free slot"
            )
            self.held[index][ticket.number] = ticket
        full = all(len(held) == self.slots for held in self.held)
        assert full or not self.waiting, "a slot is free while a batch waits"

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(n for held in self.held for n in held)))
        self.queue.release(number)
        for held in self.held:
            held.pop(number, None)

    @rule(number=st.integers(10_000, 10_001))
    def release_unknown(self, number: int) -> None:
        self.queue.release(number)

    @rule(owner=OWNERS)
    def forget(self, owner: str) -> None:
        self.queue.forget(owner)
        self.waiting = [ticket for ticket in self.waiting if ticket.owner != owner]
        self.held = [{n: t for n, t in held.items() if t.owner != owner} for held in self.held]

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "queue"):
            assert outstanding(self.queue) == self.loads()
            assert self.queue.waiting(ROLLOUT) == sum(ticket.size for ticket in self.waiting)

    def teardown(self) -> None:
        """Checks that no batch starves: as engines finish, all are served in at most one round per batch."""
        if not hasattr(self, "queue"):
            return
        for _ in range(len(self.waiting) + 1):
            self.grant()
            for held in self.held:
                for number in list(held):
                    self.queue.release(number)
                held.clear()
        assert self.queue.waiting(ROLLOUT) == 0


Dispatching.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestDispatching = Dispatching.TestCase


def numbers(granted):
    return [(ticket.number, index) for ticket, index in granted]


def test_nothing_starts_before_it_is_granted():
    queue = pool(2)
    assert queue.grant() == []
    queue.submit("a", 5)
    assert (queue.waiting(ROLLOUT), outstanding(queue)) == (5, [0, 0])
    assert numbers(queue.grant()) == [(1, 0)]
    assert queue.grant() == []
    assert (queue.waiting(ROLLOUT), outstanding(queue)) == (0, [5, 0])


def test_load_is_measured_in_responses_not_batches():
    queue = pool(2, 3)
    for size in (100, 10, 10, 10):
        queue.submit("a", size)
    assert numbers(queue.grant()) == [(1, 0), (2, 1), (3, 1), (4, 1)]
    assert outstanding(queue) == [100, 30]


def test_a_tie_goes_to_the_first_engine():
    queue = pool(3, 1)
    for _ in range(3):
        queue.submit("a", 4)
    assert numbers(queue.grant()) == [(1, 0), (2, 1), (3, 2)]


def test_a_slow_engine_never_holds_what_a_fast_one_could_do():
    queue = pool(2, 2)
    for _ in range(12):
        queue.submit("a", 8)
    placed = dict(numbers(queue.grant()))
    while queue.waiting(ROLLOUT):
        done = next(number for number, index in placed.items() if index == 1)
        queue.release(done)
        del placed[done]
        granted = numbers(queue.grant())
        assert [index for _, index in granted] == [1]
        placed |= dict(granted)
    assert sorted(placed.values()) == [0, 0, 1, 1], "engine 0, which never finished, holds more than its two slots"


def test_a_large_batch_at_the_head_is_not_overtaken():
    queue = pool(1, 1)
    first = queue.submit("a", 1)
    queue.grant()
    queue.submit("b", 1000)
    for _ in range(5):
        queue.submit("a", 1)
    queue.release(first.number)
    ((ticket, _),) = queue.grant()
    assert ticket.size == 1000


def test_a_dead_owner_frees_its_slots_and_its_place_in_the_queue():
    queue = pool(1, 1)
    dead = queue.submit("dead", 9)
    queue.grant()
    queue.submit("dead", 9)
    alive = queue.submit("alive", 3)
    queue.forget("dead")
    assert numbers(queue.grant()) == [(alive.number, 0)]
    queue.release(dead.number)
    assert outstanding(queue) == [3]


def test_a_ticket_is_metadata_only():
    ticket = pool(1).submit("a", 2)
    assert set(Ticket.__slots__) == {"number", "owner", "size", "ahead", "role"}
    with pytest.raises(AttributeError):
        ticket.size = 3


def test_a_dead_engine_gets_no_more_and_its_batches_are_dropped():
    queue = pool(2, 1)
    first = queue.submit("a", 1)
    second = queue.submit("b", 1)
    assert numbers(queue.grant()) == [(first.number, 0), (second.number, 1)]
    third = queue.submit("a", 1)
    fourth = queue.submit("b", 1)
    queue.lose(first.number)
    assert queue.grant() == []
    queue.release(second.number)
    assert numbers(queue.grant()) == [(third.number, 1)]
    queue.renew(0)
    assert numbers(queue.grant()) == [(fourth.number, 0)]


def test_late_news_of_a_replaced_engine_does_not_harm_its_successor():
    queue = pool(1, 2)
    first = queue.submit("a", 1)
    second = queue.submit("a", 1)
    queue.grant()
    queue.lose(first.number)
    queue.renew(0)
    queue.lose(second.number)
    third = queue.submit("a", 1)
    assert numbers(queue.grant()) == [(third.number, 0)]


def test_a_batch_is_stranded_only_without_any_engine():
    queue = pool(2, 1)
    first, second, third = (queue.submit("a", 1) for _ in range(3))
    queue.grant()
    queue.lose(first.number)
    assert queue.stranded() == []
    queue.lose(second.number)
    assert queue.stranded() == [third] and queue.waiting(ROLLOUT) == 0


def test_a_lost_engine_is_noticed_while_all_others_are_kept():
    queue = pool(2, 1)
    queue.keep([0])
    first, second = (queue.submit("a", 1) for _ in range(2))
    assert numbers(queue.grant()) == [(first.number, 1)] and queue.stranded() == []
    queue.lose(first.number)
    assert queue.stranded() == [second]
    queue.renew(1)
    queue.keep([0, 1])
    queue.submit("a", 1)
    assert queue.grant() == [] and queue.stranded() == [], "those that are kept come back"


def test_batches_at_the_head_keep_their_order():
    queue = pool(1, 4)
    last = queue.submit("a", 1)
    first = queue.submit("b", 1, at_the_head=True)
    second = queue.submit("a", 1, at_the_head=True)
    assert numbers(queue.grant()) == [(ticket.number, 0) for ticket in (first, second, last)]


def test_forgetting_an_owner_returns_its_waiting_batches():
    queue = pool(1, 1)
    queue.submit("a", 1)
    queue.grant()
    waiting = queue.submit("a", 1)
    other = queue.submit("b", 1)
    assert queue.forget("a") == [waiting]
    assert numbers(queue.grant()) == [(other.number, 0)]


def test_owners_are_those_with_waiting_or_held_batches() -> None:
    queue = pool(1, 1)
    queue.submit("holds", 4)
    queue.submit("waits", 4)
    assert queue.owners() == {"holds", "waits"}
    ((ticket, _),) = queue.grant()
    queue.release(ticket.number)
    assert queue.owners() == {"waits"}


def test_a_migrating_instance_is_listed_until_it_is_empty() -> None:
    queue = DispatchQueue([1.0, 1.0], {ROLLOUT: AdmissionLimits(None, 8)})
    tickets = [queue.submit("controller", 3) for _ in range(3)]
    assert [index for _, index in queue.grant()] == [0, 1, 0]
    assert queue.apply(HandOver(0, JUDGE, migrate=True)) == 6
    queue.progress(tickets[0].number, 3)
    queue.release(tickets[0].number)
    assert queue.lingering() == [(0, 3)], "the batch that was in progress when it was told to migrate"
    queue.release(tickets[2].number)
    assert queue.lingering() == [] and queue.switches() == [(0, JUDGE)]
    queue.apply(HandOver(1, JUDGE, migrate=False))
    assert queue.lingering() == [], "a draining instance keeps its batches"
