"""The decisions of successive halving, from values alone: no order of arrival changes them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flows.sweeps.runner import best_in_words
from flows.sweeps.schedule import HalvingRule, RungJob, Schedule, schedule_of

RULE = HalvingRule((4, 16, 64), 4, 4, 16)
rules = st.builds(
    HalvingRule,
    st.sampled_from([(10,), (4, 16, 64), (2, 4, 8, 16), (3, 20)]),
    st.integers(2, 5),
    st.integers(1, 6),
    st.integers(1, 20),
)


def value_of(job: RungJob, salt: int) -> float | None:
    number = hash((job.trial * 31 + job.rung, salt)) % 1000
    return None if number < 100 else number / 1000


def carried(rule: HalvingRule, salt: int, order: st.DataObject | None = None) -> Schedule:
    """Measures the jobs under way one by one, in an order of arrival that hypothesis chooses, until none is left."""
    values: dict[RungJob, float | None] = {}
    decided: list[RungJob] = []
    while True:
        schedule = schedule_of(rule, values)
        before = decided
        decided = list(schedule.decided)
        assert decided[: len(before)] == before, "no decision is taken back or overtaken by another"
        missing = sorted(job for job in schedule.open if job not in values)
        if not missing:
            return schedule
        job = missing[0] if order is None else order.draw(st.sampled_from(missing))
        values[job] = value_of(job, salt)


@given(rules, st.integers(0, 1000), st.data())
def test_the_order_of_arrival_changes_nothing(rule: HalvingRule, salt: int, data: st.DataObject) -> None:
    one = carried(rule, salt)
    other = carried(rule, salt, data)
    assert list(one.decided) == list(other.decided) and list(one.settled.items()) == list(other.settled.items())
    assert one.best() == other.best() and one.now == other.now


@given(rules, st.integers(0, 1000))
def test_every_trial_begins_and_only_those_with_a_value_go_on(rule: HalvingRule, salt: int) -> None:
    done = carried(rule, salt)
    assert not done.open and done.settled.keys() == done.decided.keys()
    assert {job.trial for job in done.decided if job.rung == 0} == set(range(rule.trials))
    for job in done.decided:
        assert job.rung == 0 or done.settled[RungJob(job.trial, job.rung - 1)] is not None
    counts = [done.count(rung) for rung in range(len(rule.rungs))]
    assert all(after <= before for before, after in pairwise(counts))


@given(st.integers(0, 1000))
def test_somebody_reaches_the_last_rung_even_if_the_best_fail_there(salt: int) -> None:
    done = carried(RULE, salt)
    best = done.best()
    failed = [job for job, value in done.settled.items() if value is None]
    assert best is not None and (best.rung == 2 or all(RungJob(trial, 2) in failed for trial in done.ranked(1)))
    if not failed:
        assert sum(map(RULE.iterations, done.decided)) <= 0.4 * 16 * 64


def test_the_best_of_four_goes_on_before_the_others_have_begun() -> None:
    values = {RungJob(trial, 0): float(trial) for trial in range(4)}
    schedule = schedule_of(RULE, values)
    assert list(schedule.decided) == [
        *(RungJob(trial, 0) for trial in range(4)),
        RungJob(3, 1),
        *(RungJob(trial, 0) for trial in (4, 5, 6)),
    ]
    assert schedule.open == {RungJob(3, 1): 16, RungJob(4, 0): 8, RungJob(5, 0): 8, RungJob(6, 0): 8}


def test_a_value_that_was_measured_early_counts_at_the_end_of_its_job() -> None:
    values: dict[RungJob, float | None] = {RungJob(trial, 0): float(trial) for trial in range(4)}
    ahead = schedule_of(RULE, {**values, RungJob(3, 1): 9.0})
    assert RungJob(3, 1) not in ahead.settled and list(ahead.decided) == list(schedule_of(RULE, values).decided)


def test_few_trials_still_have_a_winner_at_the_end_and_failures_have_none() -> None:
    few = HalvingRule((4, 16, 64), 4, 2, 2)
    assert carried_with(few, 0.5).best() == RungJob(0, 2)
    assert carried_with(few, None).best() is None
    assert (carried_with(few, 0.5).tied(), carried_with(few, None).tied()) == ([0], [])


def test_trials_that_are_as_good_as_the_best_are_named() -> None:
    rule = HalvingRule((4,), 4, 2, 4)
    values: dict[RungJob, float | None] = {
        RungJob(0, 0): 0.5,
        RungJob(1, 0): 0.7,
        RungJob(2, 0): None,
        RungJob(3, 0): 0.7,
    }
    assert schedule_of(rule, values).tied() == [1, 3]
    assert best_in_words(1, [1, 3]) == "trials 1, 3 are equally good; trial 1, the first of them, is taken as the best"
    assert best_in_words(1, [1]) == "trial 1 is the best"


def carried_with(rule: HalvingRule, value: float | None) -> Schedule:
    return schedule_of(
        rule, {RungJob(trial, rung): value for trial in range(rule.trials) for rung in range(len(rule.rungs))}
    )
