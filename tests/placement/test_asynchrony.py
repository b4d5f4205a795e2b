"""Modes of asynchrony in the simulator: nothing is dropped, staleness is bounded, and only tokens decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.asynchrony.devices import Devices, collected, engines_beside, stepped
from benchmarks.placement_lower_bound import overlapped_lower_bound, wave_lower_bound
from tests.matrix import examples
from tests.placement.workloads import small
from yatt_core.errors import ConfigurationError
from yatt_core.placement.policies.curve import CurvePolicy, Knobs
from yatt_core.placement.policies.fixed import Hold, SplitPool
from yatt_core.placement.simulation.campaign import collect, draw_iterations, run_campaign, setting_of
from yatt_core.placement.simulation.groups import Content, Group, Supply, piece, whole_content
from yatt_core.placement.simulation.overlap import (
    Learner,
    commits,
    learner_on,
    shared_seconds,
    streamed_seconds,
    sync_seconds,
)
from yatt_core.placement.simulation.slices import SlicedRun, Slices
from yatt_core.placement.simulation.staleness import mean_staleness, staleness_of
from yatt_core.placement.simulation.tail_rounds import TailRounds, TailRun
from yatt_core.placement.simulation.token_times import ReadyGroup, ready_groups
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.placement.workload import Scenario

TOOLS = {"max_turns": 4, "mean_wait_s": 0.3, "output_tokens": 50}


def tailed(seed: int = 5, devices: int = 4, **samples: object) -> Scenario:
    """Returns a workload of eight groups of two with a long tail."""
    lengths = {"median": 100, "sigma": 1.1, "min": 1, "max": 1500, "rho": 0.3}
    changes = {"prompts": 8, "group": 2, "response": lengths, **samples}
    return small(devices, **changes).model_copy(update={"seed": seed})


class Noting(Supply):
    """A supply that keeps what it gave out."""

    def __init__(self, workload: Scenario) -> None:
        super().__init__(workload)
        self.given: list[Group] = []

    def take(self, iteration: int, count: int) -> list[Group]:
        taken = super().take(iteration, count)
        self.given += taken
        return taken


def lengths_of(groups: Sequence[Group]) -> Counter[int]:
    return Counter(sample.response for group in groups for sample in group.samples)


slicings = st.builds(
    lambda tokens, most, more: Slices(prompts=8, tokens=tokens, most=most, in_flight=8 + more),
    st.one_of(st.none(), st.integers(5, 2000)),
    st.integers(1, 6),
    st.integers(0, 30),
)
runs = st.builds(
    lambda seed, tools, sampling: tailed(
        seed,
        **({"tools": TOOLS} if tools else {}),
        **({"dynamic_sampling": True, "validity": 0.6} if sampling else {}),
    ),
    st.integers(0, 10_000),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=examples(40), deadline=None)
@given(runs, slicings)
def test_slices_drop_nothing_and_keep_the_bound(workload: Scenario, slices: Slices) -> None:
    supply = Noting(workload)
    run = SlicedRun(supply, slices, setting_of(workload).tool_tokens)
    contents = [run.next(iteration) for iteration in range(6)]
    gone = [one.group for content in contents for one in content.learnt]
    gone += [group for content in contents for group in content.invalid]
    assert lengths_of(gone) + lengths_of([one.group for one in run.in_flight]) == lengths_of(supply.given)
    assert all(len(content.learnt) == slices.prompts for content in contents)
    learnt = [one for content in contents for one in content.learnt]
    for one in learnt:
        assert [sum(tokens for _, tokens in stretches) for stretches in one.stretches] == [
            sample.response for sample in one.group.samples
        ]
    assert staleness_of(contents).most <= slices.staleness_bound
    drawn = sum(sample.response for content in contents for wave in content.rounds for sample in wave.samples)
    ended = sum(sample.response for group in gone for sample in group.samples)
    assert drawn == ended + sum(response.done for one in run.in_flight for response in one.responses)


@settings(max_examples=examples(40), deadline=None)
@given(runs, st.integers(9, 24))
def test_tail_rounds_drop_nothing_and_keep_the_bound(workload: Scenario, started: int) -> None:
    rounds = TailRounds(8, started)
    supply = Noting(workload)
    run = TailRun(supply, rounds, setting_of(workload).tool_tokens)
    contents = [run.next(iteration) for iteration in range(8)]
    gone = [one.group for content in contents for one in content.learnt]
    gone += [group for content in contents for group in content.invalid]
    assert lengths_of(gone) + lengths_of([one.group for one in run.waiting]) == lengths_of(supply.given)
    assert all(len(content.learnt) == 8 for content in contents)
    assert staleness_of(contents).most <= rounds.staleness_bound


def test_a_short_round_ends_at_the_token_at_which_enough_groups_are_complete() -> None:
    supply = Noting(tailed())
    content = TailRun(supply, TailRounds(8, 12)).next(0)
    longest = sorted(group.longest for group in supply.given)
    (wave,) = content.rounds
    assert sorted(one.group.longest for one in content.learnt) == longest[:8]
    assert max(sample.response for sample in wave.samples) == longest[7] < longest[-1]
    judged = [sample for sample in wave.samples if sample.judge]
    whole = [sample for group in supply.given for sample in group.samples if sample.response <= longest[7]]
    assert len(judged) == len(whole), "a response is judged in the round in which it ends"


def test_what_was_drawn_under_older_weights_is_read_again() -> None:
    work = SampleWork(group=0, first=False, prompt=10, turns=(4, 4, 5), waits=(1.0, 2.0), judge=(7,))
    first = piece(work=work, done=0, tokens=6, tool_tokens=3)
    assert first == replace(work, turns=(4, 2), waits=(1.0,), judge=())
    second = piece(work=work, done=6, tokens=2, tool_tokens=3)
    assert second == replace(work, first=True, prompt=10 + 6 + 3, turns=(2,), waits=(), judge=())
    last = piece(work=work, done=8, tokens=5, tool_tokens=3)
    assert last == replace(work, first=True, prompt=10 + 8 + 6, turns=(5,), waits=(), judge=(7,))


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 1000), slicings, st.integers(2, 6), st.floats(0.2, 3.0))
def test_what_an_iteration_contains_does_not_depend_on_the_engines(
    seed: int, slices: Slices, devices: int, speed: float
) -> None:
    def contents(workload: Scenario) -> list[Content]:
        run = SlicedRun(Supply(workload), slices)
        return [run.next(iteration) for iteration in range(3)]

    ours = tailed(seed, devices=4)
    groups = (ours.cluster.groups[0].model_copy(update={"devices": devices, "speed": speed}),)
    theirs = ours.model_copy(update={"cluster": ours.cluster.model_copy(update={"groups": groups})})
    expected = contents(ours)
    assert contents(theirs) == expected
    for workload in (ours, theirs):
        usage = collected(setting_of(workload), Devices(0, 1), expected[-1].rounds).usage
        tokens = sum(sample.response for wave in expected[-1].rounds for sample in wave.samples)
        assert sum(row.sequence_steps for row in usage if row.role == "R") == tokens


@settings(max_examples=10, deadline=None)
@given(runs)
def test_with_lag_0_the_model_is_todays_simulation(workload: Scenario) -> None:
    today = run_campaign(workload, SplitPool(1))
    contents = [whole_content(waves, number, 0) for number, waves in enumerate(draw_iterations(workload))]
    again = [collect(setting_of(workload), "RRRJ", Hold(), content.rounds, "RRRJ").collect_s for content in contents]
    assert again == today.collect_s
    learner = learner_on(workload, workload.cluster.devices)
    learn_s = [learner.seconds(content.tokens) for content in contents]
    for content, seconds in zip(contents, again, strict=True):
        tokens = sum(sample.prompt + sample.response for wave in content.rounds for sample in wave.samples)
        assert content.tokens == tokens
        assert shared_seconds(workload, seconds, tokens) == pytest.approx(
            seconds + 1.0 + 1.0 + 1e-4 * tokens / workload.cluster.devices
        )
    whole = [a + b + sync_seconds(workload) for a, b in zip(again, learn_s, strict=True)]
    assert commits(again, learn_s, 0, sync_seconds(workload))[-1] == pytest.approx(sum(whole))
    assert staleness_of(contents).most == 0


def test_with_lag_the_trainer_learns_while_the_engines_are_ahead() -> None:
    collect_s = [5.0, 7.0, 1.0, 4.0]
    learn_s = [2.0, 6.0, 3.0, 1.0]
    assert commits(collect_s, learn_s, 1, 0.5) == [12.5, 19.0, 23.5, 25.0]
    assert commits(collect_s, learn_s, 2, 0.5) == [14.5, 21.0, 24.5, 26.0]


def test_streamed_groups_come_in_the_order_of_tokens_as_soon_as_it_is_known() -> None:
    """One engine draws three groups of one response; the fourth, the shortest, waits for a place."""
    workload = small(devices=2)
    rollout = workload.engines.rollout.model_copy(update={"max_concurrent": 3})
    setting = replace(setting_of(workload), rollout=rollout, speeds=(1.0, 1.0))
    samples = tuple(
        SampleWork(group=number, first=True, prompt=1, turns=(length,), waits=(), judge=(1,))
        for number, length in enumerate((30, 10, 20, 5))
    )
    groups, collect_s = ready_groups(setting, "RJ", Hold(), WaveWork(samples, (True,) * 4), None)
    assert [(group.longest, group.ordinal, group.tokens) for group in groups] == [
        (5, 3, 6), (10, 1, 11), (20, 2, 21), (30, 0, 31)
    ]  # fmt: skip
    first, second, _, last = groups
    step = rollout.base_s + 3 * rollout.per_sequence_s
    assert first.known_s == pytest.approx(6 * step, rel=0.01), "the others have more tokens than the first one will"
    assert second.known_s == pytest.approx(11 * step, rel=0.01)
    assert second.judged_s < first.judged_s, "the second one is complete before, and waits for the first"
    assert last.known_s == 0.0 and last.judged_s == collect_s
    learner = Learner(fixed_s=1.0, token_s=0.001)
    assert streamed_seconds(groups, learner) == pytest.approx(collect_s + 0.031 + 1.0)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1000), st.floats(1e-5, 1e-2), st.integers(2, 5))
def test_streaming_never_changes_the_order_and_never_takes_longer(seed: int, token_s: float, devices: int) -> None:
    workload = tailed(seed, devices=devices)
    setting = setting_of(workload)
    ((wave,), *_) = draw_iterations(workload)
    roles = "R" * (devices - 1) + "J"
    groups, collect_s = ready_groups(setting, roles, CurvePolicy(Knobs(1, 0.7, 0.75, 1.5), roles, setting), wave, None)
    keys = [(group.longest, group.ordinal) for group in groups]
    assert keys == sorted(keys) and len(groups) == 8
    learner = Learner(fixed_s=1.0, token_s=token_s)
    apart = collect_s + learner.seconds(sum(group.tokens for group in groups))
    assert max(collect_s, learner.seconds(0)) <= streamed_seconds(groups, learner) <= apart + 1e-9


def test_a_streamed_group_waits_for_its_turn_and_its_rewards() -> None:
    early = ReadyGroup(longest=1, ordinal=1, tokens=10, known_s=4.0, judged_s=2.0)
    late = ReadyGroup(longest=2, ordinal=0, tokens=10, known_s=0.0, judged_s=5.5)
    assert streamed_seconds([early, late], Learner(fixed_s=3.0, token_s=0.1)) == 9.5


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1000), slicings.filter(lambda slices: slices.tokens is not None))
def test_mean_staleness_is_its_closed_form(seed: int, slices: Slices) -> None:
    """Over a run that ends with nothing in flight, what iterations hold and what groups spend are the same sum."""
    workload = tailed(seed)
    supply = Drained(workload, groups=40)
    run = SlicedRun(supply, slices)
    contents: list[Content] = []
    while supply.left or run.in_flight:
        contents.append(run.next(len(contents)))
    learnt = [one for content in contents for one in content.learnt]
    assert len(learnt) == 40
    batch = len(learnt) / len(contents)
    response = sum(len(stretches) for one in learnt for stretches in one.stretches) / (2 * len(learnt))
    longest = sum(max(len(stretches) for stretches in one.stretches) for one in learnt) / len(learnt)
    places = 2 * slices.in_flight
    predicted = mean_staleness(
        utilisation=sum(content.drawing for content in contents) / len(contents) / places,
        places=places,
        batch=batch,
        group=2,
        tail=longest / response,
        waiting=sum(content.waiting for content in contents) / len(contents),
    )
    assert staleness_of(contents).starts == pytest.approx(predicted, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_mean_staleness_of_tail_rounds_is_its_closed_form(seed: int) -> None:
    """A group also waits unfinished. What is in flight when a long run is stopped makes the form inexact by less than 0.03."""
    count = 80
    run = TailRun(Supply(tailed(seed)), TailRounds(8, 12))
    contents: list[Content] = []
    idle = 0
    for iteration in range(count):
        before = list(run.waiting)
        contents.append(run.next(iteration))
        idle += sum(all(response.stretches[-1][0] < iteration for response in one.responses) for one in before)
    learnt = [one for content in contents for one in content.learnt]
    response = sum(len(stretches) for one in learnt for stretches in one.stretches) / (2 * len(learnt))
    longest = sum(max(len(stretches) for stretches in one.stretches) for one in learnt) / len(learnt)
    predicted = mean_staleness(
        utilisation=sum(content.drawing for content in contents) / count / 24,
        places=24,
        batch=8,
        group=2,
        tail=longest / response,
        waiting=idle / count,
    )
    found = staleness_of(contents)
    assert found.starts == pytest.approx(predicted, abs=0.03) and found.starts > 0.4


class Drained(Supply):
    """A supply that ends: what is asked for beyond it is left out, and the last iteration learns from fewer groups."""

    def __init__(self, workload: Scenario, groups: int) -> None:
        super().__init__(workload)
        self.left = groups

    def take(self, iteration: int, count: int) -> list[Group]:
        count = min(count, self.left)
        self.left -= count
        return super().take(iteration, count)


def test_full_engines_bound_what_barriers_allow() -> None:
    workload = tailed()
    setting = setting_of(workload)
    for waves in draw_iterations(workload):
        bound = overlapped_lower_bound(workload, waves)
        whole = sum(wave_lower_bound(setting, wave) for wave in waves)
        tokens = sum(sample.prompt + sample.response for wave in waves for sample in wave.samples)
        assert 0.0 < bound < shared_seconds(workload, whole, tokens)
    slow = workload.cluster.groups[0].model_copy(update={"devices": 2, "speed": 0.5})
    fast = slow.model_copy(update={"speed": 1.5})
    uneven = workload.model_copy(update={"cluster": workload.cluster.model_copy(update={"groups": (slow, fast)})})
    assert overlapped_lower_bound(uneven, waves) < bound, "the slow devices learn"


def test_devices_move_by_steps_towards_the_load() -> None:
    setting = replace(setting_of(small(devices=4)), speeds=(1.0, 0.5, 1.0, 0.5))
    assert engines_beside(setting, 1).speeds == (1.0, 0.5, 1.0) and engines_beside(setting, 2).speeds == (1.0, 1.0)
    assert stepped(4, Devices(0, 1), lambda devices: -devices.judges, rounds=1) == Devices(0, 2)
    assert stepped(4, Devices(0, 1), lambda devices: -devices.judges, rounds=9) == Devices(0, 3)
    assert stepped(4, Devices(2, 1), lambda devices: devices.trainer, rounds=1) == Devices(1, 1)
    assert stepped(4, Devices(2, 1), lambda devices: devices.judges, rounds=1) == Devices(2, 0)
    assert stepped(4, Devices(2, 1), lambda devices: -devices.shape, rounds=1) == Devices(2, 1, 2)
    gains = {Devices(0, 1): 5.0, Devices(0, 2): 4.5, Devices(0, 1, 1): 4.8}
    assert stepped(4, Devices(0, 1), lambda devices: gains.get(devices, 9.0), rounds=3) == Devices(0, 2)
    assert stepped(4, Devices(0, 1), lambda devices: gains.get(devices, 9.0), rounds=3, moving_s=1.0) == Devices(
        0, 1, 1
    )


def test_settings_that_never_end_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="in_flight: 7 groups"):
        Slices(prompts=8, tokens=10, most=2, in_flight=7)
    with pytest.raises(ConfigurationError, match="started: 8 groups leave no tail"):
        TailRounds(8, 8)
