"""The guards' state machine over any stream of metrics: interruptions never change its alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.guards.findings import Alarm
from yatt_core.guards.judging import GuardEvaluator, History
from yatt_core.spec.sections.guards import CustomGuard, GuardsSpec, NonFiniteGuard, RewardLengthGuard

SMALL = GuardsSpec(
    entropy=None,
    reward_against_length=RewardLengthGuard(window=2, growth=1.2),
    non_finite=NonFiniteGuard(window=3, at_most=1),
    custom=(
        CustomGuard(name="high", metric="kl", at_most=1.0, window=2),
        CustomGuard(name="sudden", metric="grad_norm", rise=2.0, window=1, baseline=3, action="rollback"),
        CustomGuard(name="slow", metric="tokens_per_second", fall=0.5, window=2, baseline=2, action="pause"),
    ),
)
OFTEN = ("reward/mean", "length/response_mean", "accuracy", "tokens_per_second")
SELDOM = ("kl", "grad_norm", "update/skipped")
Values = Mapping[str, float]

value = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
iteration = st.fixed_dictionaries(dict.fromkeys(OFTEN, value), optional=dict.fromkeys(SELDOM, value))
streams = st.lists(iteration, max_size=25)


class Ledger:
    """The result of commits: points, alarms, and the newest control state."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = {}
        self.alarms: list[tuple[int, Alarm]] = []
        self.since: Mapping[str, int] = {}
        self.committed = 0

    def history(self, judge: GuardEvaluator) -> History:
        """Returns the history as read by the next driver, no deeper than the rules need."""
        empty = History.of(judge.rules)
        return empty.filled({key: self.points.get(key, [])[-depth:] for key, depth in empty.depths.items()})

    def commit(self, number: int, values: Values, since: Mapping[str, int], alarms: Sequence[Alarm]) -> None:
        for key, point in values.items():
            self.points.setdefault(key, []).append((number, point))
        self.alarms += [(number, alarm) for alarm in alarms]
        self.since = since
        self.committed = number


def drive(ledger: Ledger, stream: Sequence[Values], killed_after: frozenset[int], killed_in: frozenset[int]) -> Ledger:
    """Judges and commits; after some iterations, and in the middle of others, a new driver takes over."""
    judge = GuardEvaluator(SMALL)
    history = ledger.history(judge)
    for number, values in enumerate(stream, 1):
        history = history.extended(number, values)
        judged = judge.judge(history, number, ledger.since)
        if number in killed_in:  # judged but not committed, so it must leave no trace
            judge = GuardEvaluator(SMALL)
            history = ledger.history(judge).extended(number, values)
            judged = judge.judge(history, number, ledger.since)
        ledger.commit(number, values, judged.since, judged.alarms)
        if number in killed_after:
            judge = GuardEvaluator(SMALL)
            history = ledger.history(judge)
    return ledger


@given(streams, st.frozensets(st.integers(1, 25)), st.frozensets(st.integers(1, 25)))
def test_kills_change_no_alarm(stream: list[Values], killed_after: frozenset[int], killed_in: frozenset[int]) -> None:
    quiet = drive(Ledger(), stream, frozenset(), frozenset())
    killed = drive(Ledger(), stream, killed_after, killed_in)
    assert killed.alarms == quiet.alarms
    assert killed.since == quiet.since


@given(streams)
def test_alarms_of_a_rule_cover_distinct_values_and_never_future_ones(stream: list[Values]) -> None:
    told: dict[str, int] = {}
    for number, alarm in drive(Ledger(), stream, frozenset(), frozenset()).alarms:
        assert told.get(alarm.rule, 0) < alarm.finding.first <= number
        told[alarm.rule] = number


@given(streams, iteration)
def test_a_rollback_restores_the_memory_of_its_target(stream: list[Values], other: Values) -> None:
    """Continuing from a past iteration with other values works as if the later iterations had never existed."""
    at = len(stream) // 2
    past = drive(Ledger(), stream[:at], frozenset(), frozenset())
    line = drive(Ledger(), [*stream[:at], other], frozenset(), frozenset())
    judge = GuardEvaluator(SMALL)
    judged = judge.judge(past.history(judge).extended(at + 1, other), at + 1, past.since)
    assert [alarm for number, alarm in line.alarms if number == at + 1] == list(judged.alarms)


def test_some_streams_trip_every_rule() -> None:
    """The streams that the properties above draw can trip every rule."""
    calm = dict.fromkeys(OFTEN, 1.0) | {"kl": 0.5, "grad_norm": 1.0}
    loud = {"reward/mean": 0.5, "length/response_mean": 5.0, "accuracy": 0.5, "tokens_per_second": 0.1}
    loud |= {"kl": 5.0, "grad_norm": 5.0, "update/skipped": 1.0}
    ledger = drive(Ledger(), [calm] * 6 + [loud] * 4, frozenset({7}), frozenset({8}))
    assert {alarm.rule for _, alarm in ledger.alarms} >= {
        "high", "sudden", "slow", "reward_against_length", "non_finite", "kl",
    }  # fmt: skip
