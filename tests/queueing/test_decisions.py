"""Which runs the queue starts and stops: gangs, priorities, age, fair share, preemption, backfilling, limits, lost devices."""

from __future__ import annotations

from flows.queueing.decisions import HELD_BACK, RECLAIMED, decide
from flows.queueing.facts import Decision, QueueIntent
from flows.queueing.pools import HOUR, parse_pools
from tests.queueing.facts import NOW, entry, facts, holding, pools


def started(decision: Decision) -> list[str]:
    return [start.run for start in decision.starts]


def stopped(decision: Decision) -> list[str]:
    return [stop.run for stop in decision.stops]


def test_a_run_starts_when_all_its_devices_are_free_and_not_before() -> None:
    waits = entry("big", 6)
    assert started(decide(pools(), facts(holding("other", 0, 3), waits))) == []
    decision = decide(pools(), facts(holding("other", 0, 2), waits))
    assert decision.starts[0].devices == (2, 3, 4, 5, 6, 7)


def test_higher_priority_goes_first_then_the_account_that_used_less_then_submission() -> None:
    runs = [
        entry("late", 4, order=3, owner="ben"),
        entry("busy", 4, order=1),
        entry("high", 4, priority=1, order=4),
        entry("early", 4, order=2, owner="ben"),
    ]
    assert started(decide(pools(8), facts(*runs, used={"ada": 9 * HOUR}))) == ["high", "early"]
    assert started(decide(pools(8), facts(*runs, used={"ben": 9 * HOUR}))) == ["high", "busy"]


def test_an_account_that_just_got_devices_is_behind_the_others() -> None:
    runs = [entry(f"ada-{number}", 4, order=number) for number in range(2)]
    assert started(decide(pools(8), facts(*runs, entry("ben", 4, order=5, owner="ben")))) == ["ada-0", "ben"]


def test_a_share_of_two_may_use_twice_as_much() -> None:
    shared = pools(4, fair_share={"by": "project", "shares": {"chat": 2}})
    runs = [entry("chat", 4, order=1), entry("code", 4, order=0, project="code")]
    assert started(decide(shared, facts(*runs, used={"chat": 19.0, "code": 10.0}))) == ["chat"]


def test_a_run_grows_a_level_for_each_ageing_time_that_it_has_waited() -> None:
    old = entry("old", 8, order=1, waited=25 * HOUR)
    young = entry("young", 8, priority=1, order=0)
    assert started(decide(pools(8, ageing_hours=12), facts(old, young))) == ["old"]


def test_a_run_of_higher_level_preempts_those_that_waste_least() -> None:
    running = [
        holding("costly", 0, 4, lost_seconds=900.0),
        holding("cheap", 4, 2, lost_seconds=100.0),
        holding("cheap too", 6, 2, lost_seconds=100.0),
    ]
    decision = decide(pools(stop_seconds=30), facts(*running, entry("urgent", 4, priority=1)))
    assert stopped(decision) == ["cheap", "cheap too"]
    assert {stop.within for stop in decision.stops} == {30.0}
    assert started(decision) == []


def test_equals_are_not_preempted_nor_runs_that_have_just_started() -> None:
    assert stopped(decide(pools(), facts(holding("a", 0, 8), entry("b", 8)))) == []
    fresh = holding("a", 0, 8, started_at=NOW - 60.0)
    assert stopped(decide(pools(), facts(fresh, entry("b", 8, priority=9)))) == []


def test_nobody_is_preempted_for_devices_that_are_on_their_way() -> None:
    leaving = holding("leaving", 0, 4, stopping=True)
    decision = decide(pools(), facts(leaving, holding("stays", 4, 4), entry("urgent", 4, priority=1)))
    assert stopped(decision) == []


def test_nobody_is_preempted_if_enough_devices_come_free_as_soon() -> None:
    ending = holding("ending", 0, 4, free_at=NOW + 70.0, ends_at=NOW + 70.0)
    slow = holding("slow", 4, 4, free_at=NOW + 300.0)
    decision = decide(pools(), facts(ending, slow, entry("urgent", 4, priority=1)))
    assert stopped(decision) == []
    assert decision.waiting["urgent"].until == NOW + 70.0


def test_devices_that_are_being_freed_are_kept_for_the_run_that_asked_for_them() -> None:
    running = [holding("low", 0, 4, stopping=True)]
    decision = decide(pools(), facts(*running, entry("urgent", 8, priority=1), entry("small", 2)))
    assert started(decision) == []


def test_a_short_run_is_backfilled_before_the_reservation_and_a_long_one_is_marked() -> None:
    running = holding("running", 0, 6, ends_at=NOW + 7200.0)
    big = entry("big", 8, order=0)
    short = entry("short", 1, order=1, run_seconds=3600.0)
    long = entry("long", 1, order=2, run_seconds=36_000.0)
    decision = decide(pools(), facts(running, big, short, long))
    assert {start.run: start.backfilled for start in decision.starts} == {"short": False, "long": True}
    assert decision.waiting["big"].until == NOW + 7200.0


def test_a_run_that_fits_beside_the_reservation_is_no_backfill_at_risk() -> None:
    running = holding("running", 0, 6, ends_at=NOW + 7200.0)
    decision = decide(pools(), facts(running, entry("big", 7, order=0), entry("long", 1, order=1)))
    assert [(start.run, start.backfilled) for start in decision.starts] == [("long", False)]


def test_nothing_is_backfilled_at_risk_shortly_before_the_reservation() -> None:
    running = holding("running", 0, 6, ends_at=NOW + 300.0)
    assert started(decide(pools(), facts(running, entry("big", 8, order=0), entry("long", 2, order=1)))) == []


def test_the_run_with_the_reservation_stops_those_that_were_backfilled_at_risk() -> None:
    risky = holding("risky", 0, 2, backfilled=True)
    assert stopped(decide(pools(), facts(risky, entry("big", 8)))) == ["risky"]
    assert stopped(decide(pools(), facts(holding("firm", 0, 2), entry("big", 8)))) == []


def test_limits_of_persons_and_quotas_of_projects_hold() -> None:
    limited = pools(8, devices_per_owner=4, owners={"ben": 6})
    runs = [entry("a", 4, order=0), entry("b", 4, order=1), entry("c", 4, order=2, owner="ben")]
    decision = decide(limited, facts(*runs))
    assert started(decision) == ["a", "c"]
    assert (
        decision.waiting["b"].reason == "ada may hold 4 devices (owners, devices_per_owner in pools.yaml), and holds 4"
    )
    quotas = parse_pools({"pools": {"main": {"devices": 8, "quotas": {"chat": 4}}}}, "pools")
    assert started(decide(quotas, facts(entry("a", 4, order=0), entry("b", 4, order=1)))) == ["a"]


def test_a_run_that_a_limit_blocks_keeps_nobody_waiting() -> None:
    limited = pools(8, devices_per_owner=4)
    runs = [holding("a", 0, 4), entry("b", 4, order=0, priority=5), entry("c", 4, order=1, owner="ben")]
    assert started(decide(limited, facts(*runs))) == ["c"]


def test_a_run_takes_its_second_pool_if_the_first_is_full() -> None:
    two = parse_pools({"pools": {"main": {"devices": 4}, "spot": {"devices": 4}}}, "pools")
    either = entry("either", 4, pools=("spot", "main"))
    assert decide(two, facts(either)).starts[0].pool == "spot"
    assert decide(two, facts(holding("x", 0, 4, pools=("spot",)), either)).starts[0].pool == "main"


def test_a_run_on_devices_that_go_away_stops_within_the_notice() -> None:
    decision = decide(pools(), facts(holding("a", 0, 4), holding("b", 4, 4), away={"main": {5: NOW + 45.0}}))
    assert [(stop.run, stop.reason, stop.within) for stop in decision.stops] == [("b", RECLAIMED, 45.0)]


def test_devices_that_are_away_are_not_given_to_anybody() -> None:
    decision = decide(pools(4), facts(entry("a", 3), away={"main": {0: NOW, 1: NOW}}))
    assert started(decision) == []


def test_a_run_that_is_held_back_stops_and_does_not_start() -> None:
    held = holding("a", 0, 4, wanted=QueueIntent.HOLD)
    decision = decide(pools(), facts(held, entry("b", 4, wanted=QueueIntent.HOLD)))
    assert [(stop.run, stop.reason) for stop in decision.stops] == [("a", HELD_BACK)]
    assert started(decision) == []


def test_a_run_waits_after_a_failure_without_keeping_others() -> None:
    decision = decide(pools(), facts(entry("a", 8, not_before=NOW + 1.0), entry("b", 8, order=1)))
    assert started(decision) == ["b"]


def test_a_run_of_a_pool_that_was_removed_waits_with_a_reason() -> None:
    assert decide(pools(), facts(entry("a", 1, pools=("gone",)))).waiting["a"].reason == "there is no pool gone"


def test_a_run_that_is_stopping_already_gets_the_deadline_of_its_reclaimed_devices_once() -> None:
    leaving = holding("leaving", 0, 4, stopping=True, stop_reason="preempted by other")
    away = {"main": {1: NOW + 40.0, 2: NOW + 30.0}}
    (stop,) = decide(pools(), facts(leaving, away=away)).stops
    assert (stop.reason, stop.within) == (RECLAIMED, 30.0)
    told = holding("told", 0, 4, stopping=True, stop_reason=RECLAIMED)
    assert stopped(decide(pools(), facts(told, away=away))) == []


def test_devices_that_are_claimed_count_towards_the_limits() -> None:
    leaving = holding("leaving", 0, 4, stopping=True, owner="ben")
    waiting = [entry("first", 4, order=0), entry("second", 4, order=1)]
    decision = decide(pools(8, devices_per_owner=4), facts(leaving, holding("stays", 4, 2, owner="ben"), *waiting))
    assert decision.waiting["first"].reason == "its devices are being freed"
    assert "ada may hold 4 devices (owners" in decision.waiting["second"].reason


def test_a_run_for_which_devices_are_on_their_way_preempts_in_no_other_pool() -> None:
    two = parse_pools({"pools": {"a": {"devices": 4}, "b": {"devices": 4}}}, "pools")
    running = [holding("low", 0, 4, pools=("a",)), holding("leaving", 0, 4, pools=("b",), stopping=True)]
    decision = decide(two, facts(*running, entry("urgent", 4, priority=1, pools=("a", "b"))))
    assert stopped(decision) == []
    assert decision.waiting["urgent"].reason == "its devices are being freed"
