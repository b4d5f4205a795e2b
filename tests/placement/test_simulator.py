"""The simulator: compared with golden figures and with a plain token-by-token stepper; and the effects of actions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from benchmarks.placement import GOLDEN
from benchmarks.placement_files import is_steady
from benchmarks.placement_logged import parse_action
from benchmarks.placement_lower_bound import wave_lower_bound
from tests.placement.workloads import described, small
from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import (
    JUDGE,
    ROLLOUT,
    Action,
    HandOver,
    Intake,
    Switch,
    Take,
    action_line,
)
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.fixed import ColocatePool, Hold, SplitPool
from yatt_core.placement.seen import PoolSeen
from yatt_core.placement.simulation.campaign import collect, draw_iterations, run_campaign, setting_of
from yatt_core.placement.simulation.simulator import Pool
from yatt_core.placement.work import SampleWork, WaveWork, split_turns

GOLD = json.loads(GOLDEN.read_text(encoding="utf-8"))
FILES = {workload.name: workload for workload in (described(f"w{number:02}") for number in range(1, 12))}


@pytest.mark.parametrize("name", FILES)
def test_baselines_and_lower_bound_match_the_golden_figures(name: str) -> None:
    workload = FILES[name]
    golden = GOLD[name]
    colocate = run_campaign(workload, ColocatePool())
    assert colocate.collect_s == pytest.approx(golden["colocate"]["per_iteration"], rel=1e-4)
    split = run_campaign(workload, SplitPool(golden["best_split"]["f"]))
    assert split.collect_s == pytest.approx(golden["best_split"]["per_iteration"], rel=1e-4)
    iterations = draw_iterations(workload)
    assert [[len(wave.samples) for wave in waves] for waves in iterations] == golden["samples_per_wave"]
    bound = [sum(wave_lower_bound(setting_of(workload), wave) for wave in waves) for waves in iterations]
    assert bound == pytest.approx(golden["lower_bound"]["per_iteration"], rel=2e-3)
    assert all(least < seconds for least, seconds in zip(bound, split.collect_s, strict=True))


def test_an_engine_takes_the_time_of_its_single_steps() -> None:
    """Two sequences on one instance, stepped token by token."""
    workload = small(devices=2)
    setting = setting_of(workload)
    wave = wave_of(sample(0, True, 100, 5, 3), sample(0, False, 100, 9, 2))
    rollout = setting.rollout
    judge = setting.judge

    def step(batch: Sequence[int]) -> float:
        return rollout.base_s + rollout.per_sequence_s * len(batch) + rollout.per_context_token_s * sum(batch)

    now = 100 * rollout.per_prompt_token_s  # Only the group's first sample spends time on the prompt.
    contexts = [100, 100]
    ends = []
    for token in range(9):
        now += step(contexts)
        contexts = [context + 1 for context in contexts]
        if token == 4:
            ends.append(now)
            contexts.pop()
    ends.append(now)
    pool = Pool(setting, Hold())
    pool.start("RJ", None)
    first, second = pool.run_wave(wave)
    assert [first.rolled_out_at, second.rolled_out_at] == pytest.approx(ends)
    alone = 105 * judge.per_prompt_token_s + sum(
        judge.base_s + judge.per_sequence_s + judge.per_context_token_s * (205 + token) for token in range(3)
    )
    assert first.judged_at == pytest.approx(ends[0] + alone)


def test_a_change_of_the_start_roles_is_paid_once() -> None:
    workload = small()
    setting = setting_of(workload)
    waves = draw_iterations(workload)[0]
    same = collect(setting, "RRJJ", Hold(), waves, "RRJJ").collect_s
    assert same == collect(setting, "RRJJ", Hold(), waves, None).collect_s
    late: list[float] = []
    runtime_policy = Scripted({Moment.SWITCHED: lambda pool: late.append(pool.now) or []})
    collect(setting, "RRJJ", runtime_policy, waves, "RJJJ")
    assert late == [setting.switch.repartition_s]


def test_every_kind_of_move_keeps_all_work() -> None:
    """Hand-over by draining and by migration, taking, and capping: each sample is rolled out and judged once."""
    workload = small(devices=4)
    setting = setting_of(workload)
    waves = draw_iterations(workload)[0]
    logged: list[dict[str, object]] = []
    script: dict[Moment, Callable[[PoolSeen], Sequence[Action]]] = {
        Moment.WAVE: lambda pool: [Intake(0, 3)],
        Moment.TICK: lambda pool: ticks(pool),
        Moment.DRAINED: lambda pool: [Switch(i.index, JUDGE) for i in pool.instances if i.role == ROLLOUT],
    }

    def ticks(pool: PoolSeen) -> Sequence[Action]:
        if pool.now == 0.5:
            return [Intake(0, None), Take(1, 5), HandOver(2, JUDGE, True)]
        return [HandOver(1, JUDGE, False)] if pool.now == 1.0 else []

    pool = Pool(setting, Scripted(script), logged.append)
    pool.start("RRRJ", None)
    samples = pool.run_wave(waves[0])
    assert all(0 < s.rolled_out_at < s.judged_at <= pool.now for s in samples) and len(samples) == 64
    assert [i.role for i in pool.instances][1:] == [JUDGE] * 3
    assert all(i.outstanding == i.contexts == 0 and not i.active and not i.pending for i in pool.instances)
    assert [line["do"] for line in logged][:5] == ["intake", "intake", "take", "handover", "handover"]
    rolled = sum(d.sequence_steps for i in pool.instances for d in i.usage if d.role == ROLLOUT)
    assert rolled == sum(s.work.response for s in samples), "no token was decoded twice"


def test_work_returns_from_tools_to_its_instance_or_moves() -> None:
    workload = small(devices=3, tools={"max_turns": 4, "mean_wait_s": 0.3, "output_tokens": 50})
    setting = setting_of(workload)
    waves = draw_iterations(workload)[0]
    assert any(len(s.turns) > 1 for s in waves[0].samples)
    stayed = Pool(setting, Hold())
    stayed.start("RRJ", None)
    stayed.run_wave(waves[0])
    moved = Pool(setting, Scripted({Moment.TICK: lambda pool: [HandOver(1, JUDGE, True)] if pool.now == 0.5 else []}))
    moved.start("RRJ", None)
    moved.run_wave(waves[0])
    for pool in (stayed, moved):
        done = [d for i in pool.instances for d in i.usage if d.role == ROLLOUT]
        assert sum(d.sequence_steps for d in done) == sum(s.response for s in waves[0].samples)
    assert moved.instances[1].role == JUDGE != stayed.instances[1].role


def test_an_impossible_action_is_refused() -> None:
    setting = setting_of(small())
    waves = draw_iterations(small())[0]
    with pytest.raises(ConfigurationError, match=r"roles 'RJ': .*4 letters"):
        collect(setting, "RJ", Hold(), waves, None)
    busy = Scripted({Moment.TICK: lambda pool: [Switch(0, JUDGE)]})
    with pytest.raises(ConfigurationError, match=r"Switch\(instance=0, role='J'\): .* role R, \d+ outstanding"):
        collect(setting, "RRRJ", busy, waves, None)


def test_a_standstill_is_refused() -> None:
    setting = setting_of(small())
    waves = draw_iterations(small())[0]
    with pytest.raises(ConfigurationError, match=r"at [\d.]+ s .* 64 units for R"):
        collect(setting, "JJJJ", Hold(), waves, None)


def test_actions_survive_a_round_trip_through_the_log() -> None:
    for action in (Switch(1, JUDGE), HandOver(2, JUDGE, True), Take(3, 4), Intake(0, None)):
        assert parse_action({"workload": "w", "iteration": 1, "t": 2.0, **action_line(action)}, "log:1") == action
    with pytest.raises(ConfigurationError, match=r"log:7: not an action: .* known are roles, switch"):
        parse_action({"do": "swich", "instance": 1}, "log:7")


def test_turns_add_up() -> None:
    assert split_turns(10, 4) == (2, 2, 2, 4) and split_turns(3, 1) == (3,)
    workload = small(tools={"max_turns": 5, "mean_wait_s": 1.0, "output_tokens": 10})
    for work in draw_iterations(workload)[0][0].samples:
        assert len(work.waits) == len(work.turns) - 1 <= 4 and min(work.turns) > 0


def test_lengths_are_log_normal_and_schedules_linear() -> None:
    workload = small(response={"median": ((0, 100.0), (1, 300.0)), "sigma": 0.5, "min": 1, "max": 100_000, "rho": 0.5})
    workload = workload.model_copy(update={"samples": workload.samples.model_copy(update={"prompts": 4000})})
    for (wave,), median in zip(draw_iterations(workload), (100.0, 300.0), strict=True):
        logs = np.log([s.response for s in wave.samples])
        assert math.exp(logs.mean()) == pytest.approx(median, rel=0.05) and logs.std() == pytest.approx(0.5, rel=0.05)
        groups = logs.reshape(-1, 4)
        assert np.corrcoef(groups[:, 0], groups[:, 1])[0, 1] == pytest.approx(0.5, abs=0.05)
    assert not is_steady(workload) and is_steady(small())


class Scripted:
    """A runtime policy that follows a table."""

    def __init__(self, script: dict[Moment, Callable[[PoolSeen], Sequence[Action]]]) -> None:
        self._script = script

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        return self._script[moment](pool) if moment in self._script else []


def sample(group: int, first: bool, prompt: int, tokens: int, judge: int) -> SampleWork:
    return SampleWork(group, first, prompt, (tokens,), (), (judge,))


def wave_of(*samples: SampleWork) -> WaveWork:
    return WaveWork(samples, (True,))
