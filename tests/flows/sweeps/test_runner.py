"""A sweep in a real ledger, with simulated runs: killed anywhere, in any order of arrival, it decides the same."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pytest

from db.core.engine import Fence
from db.core.errors import Fenced, LeaseHeld
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.metrics import Metric
from flows.members.driving import Goals, ended_early
from flows.members.tags import maker_of
from flows.sweeps.record import PROMOTION, TRIAL, VALUE, WINNER, SweepRecord
from tests.db.tools import holder
from tests.flows.soups.support import Killed, drive_run
from tests.flows.sweeps.support import RATE, TEMPERATURE, Lab, measured
from yatt_core.errors import ConfigurationError, DrivenElsewhereError, FencedError, InfrastructureError
from yatt_core.spec import RunSpec

FEW = (7,)
"""Calls in which it is killed in every test run."""
CALLS = 12
"""Calls of the driver in an undisturbed sweep: its start, 8 trials, 2 of them to the second rung and 1 to the third."""
EVERY_CALL = [pytest.param(call, marks=[] if call in FEW else [pytest.mark.verify]) for call in range(1, CALLS + 1)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Lab:
    lab = Lab.of(tmp_path_factory.mktemp("sweep") / "runs", inputs)
    lab.run()
    return lab


def test_only_the_best_of_a_rung_go_on_and_the_winner_is_the_best_of_the_last(undisturbed: Lab) -> None:
    chain = undisturbed.chain()
    bodies = {kind: [body for each, body in chain if each == kind] for kind in (TRIAL, PROMOTION, VALUE, WINNER)}
    assert len(bodies[TRIAL]) == 8 and undisturbed.calls == CALLS
    assert sorted(until for _, until in undisturbed.driven) == [0, *[2] * 8, 8, 8, 32]
    values = {body["trial"]: body["value"] for body in bodies[VALUE] if body["rung"] == 0}
    (winner,) = bodies[WINNER]
    assert values[winner["trial"]] == max(values.values()) and winner["iteration"] == 32
    assert all(body["rank"] <= max(1, body["among"] // 4) for body in bodies[PROMOTION])
    assert chain.index((PROMOTION, bodies[PROMOTION][0])) < len(chain) - 2, "some go on before all trials have begun"


def test_trials_are_forks_of_one_start_with_their_settings(undisturbed: Lab) -> None:
    specs = undisturbed.specs()
    settings = [body["setting"] for kind, body in undisturbed.chain() if kind == TRIAL]
    assert len(specs) == 9
    for number, setting in enumerate(settings):
        spec = specs[f"trial/{number}/0"]
        assert (
            spec.trainer.optimizer.learning_rate == setting[RATE] and spec.rollout.temperature == setting[TEMPERATURE]
        )
    with Ledger.open(undisturbed.home.ledger) as ledger:
        forks = [each.run for each in ledger.overview.forks(undisturbed.sweep)]
        assert len(forks) == 8 and {maker_of(ledger, run) for run in [undisturbed.sweep, *forks]} == {"ann"}


@pytest.mark.parametrize("call", EVERY_CALL)
def test_a_sweep_that_was_killed_decides_as_if_it_was_not(tmp_path: Path, undisturbed: Lab, call: int) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    lab.killed_at = call
    with pytest.raises(Killed):
        lab.run()
    lab.run()
    assert lab.chain() == undisturbed.chain()
    assert len(lab.specs()) == 9 and lab.calls == CALLS + 1, "only the call in which it was killed is repeated"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.verify)])
def test_the_order_of_arrival_changes_no_decision(tmp_path: Path, undisturbed: Lab, seed: int) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    lab.order = random.Random(seed).choice
    lab.run()
    assert lab.driven != undisturbed.driven and lab.chain() == undisturbed.chain()


def test_a_fork_whose_creation_was_interrupted_is_completed(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    with mock.patch("flows.branching.branches.inherit", side_effect=Killed), pytest.raises(Killed):
        lab.run()
    lab.run()
    assert lab.chain() == undisturbed.chain() and len(lab.specs()) == 9


def test_seeds_are_paired_and_their_mean_decides(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs, seeds=[3, 5], trials=2, asha=None, sampler="random")
    with mock.patch("flows.sweeps.runner.create_run", side_effect=_created_and_killed), pytest.raises(Killed):
        lab.run()
    lab.run()
    specs = lab.specs()
    names = {f"trial/{trial}/{seed}" for trial in (0, 1) for seed in (3, 5)}
    assert set(specs) == {"start/3", "start/5", *names}, "the start of the second seed is made once"
    assert all(specs[name].seed == int(name.rpartition("/")[2]) for name in names)
    bodies = [body for kind, body in lab.chain() if kind == VALUE]
    assert [set(body["values"]) for body in bodies] == [{"3", "5"}] * 2
    assert all(body["value"] == pytest.approx(sum(body["values"].values()) / 2) for body in bodies)


def _created_and_killed(home, spec, **_):
    with Ledger.open(home.ledger) as ledger:
        ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, spec.iterations)
    raise Killed


def test_keys_that_forks_cannot_change_have_starts_of_their_own(tmp_path: Path, undisturbed: Lab) -> None:
    space = {"model.hidden_size": {"values": [8, 16]}, TEMPERATURE: {"values": [0.8, 1.0]}}
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs, space=space, sampler="grid", asha=None, trials=None)
    lab.run()
    specs = lab.specs()
    starts = {name: spec.model.hidden_size for name, spec in specs.items() if name.startswith("start/0/")}
    assert sorted(starts.values()) == [8, 16]
    found = [
        (specs[f"trial/{trial}/0"].model.hidden_size, specs[f"trial/{trial}/0"].rollout.temperature)
        for trial in range(4)
    ]
    assert found == [(8, 0.8), (8, 1.0), (16, 0.8), (16, 1.0)]
    with Ledger.open(lab.home.ledger) as ledger:
        assert ledger.runs.find(lab.sweep).iteration == -1, "the run that keeps the record is no start"


def test_a_trial_that_a_guard_ends_has_failed_and_the_others_go_on(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)

    def drive(goals: Goals) -> None:
        while left := goals():
            run, until = next(iter(left.items()))
            if run.endswith("-3"):
                _pause(lab, run)
            else:
                drive_run(lab, run, until, measured)

    lab.run(drive)
    failed = [body for kind, body in lab.chain() if kind == VALUE and body["failure"]]
    assert [(body["trial"], body["value"], body["failure"]) for body in failed] == [(1, None, "the loss explodes")]
    assert [body["trial"] for kind, body in lab.chain() if kind == WINNER] != [1]


def test_a_trial_is_not_judged_where_its_evaluation_has_no_score(tmp_path: Path, undisturbed: Lab) -> None:
    """Where every answer lacks a score, there is no accuracy; the worst one would be a value that nobody measured."""
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs, trials=3, asha=None, workers=1)
    failed = list[str]()

    def drive(goals: Goals) -> None:
        while left := goals():
            run, until = next(iter(left.items()))
            lab.make_inputs(run)
            if run != lab.sweep and not failed:
                failed.append(run)
            drive_run(lab, run, until, unscored if run in failed else measured)

    lab.run(drive)
    values = [body for kind, body in lab.chain() if kind == VALUE]
    assert [body["failure"] for body in values if body["failure"]] == [
        "no answer of its evaluation at iteration 32 has a score"
    ]
    assert len(values) == 3 and [kind for kind, _ in lab.chain()].count(WINNER) == 1, "the other trials go on"


def unscored(spec: RunSpec, iteration: int) -> list[Metric]:
    """Returns the metrics of an iteration: in the last evaluation, no answer has a score."""
    if iteration == spec.iterations:
        return [Metric("evaluation/unscored", 5.0)]
    return list(measured(spec, iteration))


def _pause(lab: Lab, run: str) -> None:
    with Ledger.open(lab.home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process(f"yatt driver of {run}"), 600)
        body = {"id": "loss/1", "rule": "metric.loss", "branch": 0, "iteration": 1, "first": 1, "action": "pause"}
        ledger.alarms.record(fence, {**body, "text": "the loss explodes", "evidence": {}})
        ledger.runs.set_state(fence, "paused", "the loss explodes")
        ledger.leases.release(fence)


def test_a_run_that_ends_early_for_another_reason_ends_the_command(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)

    def lazy(goals: Goals) -> None:
        for run, until in goals().items():
            drive_run(lab, run, min(until, 1), measured)

    with pytest.raises(InfrastructureError, match=f"yatt sweep resume {lab.sweep}"):
        lab.run(lazy)
    lab.run()
    assert lab.chain() == undisturbed.chain()


def test_two_commands_do_not_decide_at_a_time(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    drive_run(lab, lab.sweep, 0, measured)
    with Ledger.open(lab.home.ledger) as ledger:
        ledger.leases.acquire(lab.sweep, this_process("yatt sweep of another"), 600)
    with pytest.raises(LeaseHeld):
        lab.run()
    assert not any(kind == TRIAL for kind, _ in lab.chain())


def test_a_second_command_is_refused_while_one_drives_the_sweep(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)

    def drive(goals: Goals) -> None:
        with pytest.raises(DrivenElsewhereError, match=f"sweep {lab.sweep} is driven by another process"):
            lab.run()
        raise Killed

    with pytest.raises(Killed):
        lab.run(drive)
    assert not lab.driven


def test_two_hosts_compete_for_a_sweep(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    subject = f"sweep/{lab.sweep}"
    with Ledger.open(lab.home.ledger) as ledger:
        far = ledger.leases.take(subject, holder("yatt sweep far away"), 600)
        with pytest.raises(
            DrivenElsewhereError, match=f"sweep {lab.sweep} is driven by .*, yatt sweep far away; .* 600 s"
        ):
            lab.run()
        assert not lab.driven
        ledger.leases.renew(far, -1)  # the host is lost, and the lease has expired

        def drive(goals: Goals) -> None:
            drive_run(lab, lab.sweep, 0, measured)
            ledger.leases.take(subject, holder("yatt sweep far away"), 600, lambda _: True)
            goals()

        with pytest.raises((Fenced, FencedError), match=f"sweep {lab.sweep}: term 2 has ended; term 3 holds the lease"):
            lab.run(drive)
        assert not any(kind == TRIAL for kind, _ in lab.chain()), "nothing is decided by a command that was replaced"
        ledger.leases.renew(Fence(subject, 3), -1)
    lab.run()
    assert lab.chain() == undisturbed.chain()


def test_a_run_without_a_first_commit_has_not_begun(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    with Ledger.open(lab.home.ledger) as ledger:
        assert ended_early(ledger, lab.sweep, 0) == f"run {lab.sweep} is created and has not begun"


def test_a_driver_that_a_killed_command_has_left_behind_is_waited_for(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs)
    drive_run(lab, lab.sweep, 0, measured)
    with Ledger.open(lab.home.ledger) as ledger:
        fence = ledger.leases.acquire(lab.sweep, this_process(f"yatt driver of {lab.sweep}"), 600)

        def drive(goals: Goals) -> None:
            assert goals() == {lab.sweep: 0}
            ledger.leases.release(fence)
            lab.drive(goals)

        lab.run(drive)
    assert lab.chain() == undisturbed.chain()


def test_a_metric_that_the_evaluation_lacks_is_refused_before_any_trial_is_driven(
    tmp_path: Path, undisturbed: Lab
) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs, metric="evaluation/pass_at_8")
    with pytest.raises(ConfigurationError, match="measures evaluation/accuracy"):
        lab.run()
    assert lab.driven == [(lab.sweep, 0)]


def test_the_smallest_value_wins_if_the_goal_says_so(tmp_path: Path, undisturbed: Lab) -> None:
    lab = Lab.of(tmp_path / "runs", undisturbed.inputs, goal="minimize", metric="loss", trials=3, asha=None)

    def drive(goals: Goals) -> None:
        while left := goals():
            run, until = next(iter(left.items()))
            drive_run(lab, run, until, lambda spec, iteration: [Metric("loss", spec.trainer.optimizer.learning_rate)])

    lab.run(drive)
    settings = [body["setting"][RATE] for kind, body in lab.chain() if kind == TRIAL]
    (winner,) = [body for kind, body in lab.chain() if kind == WINNER]
    assert winner["value"] == min(settings) and winner["trial"] == settings.index(min(settings))


def test_a_run_of_no_sweep_is_refused(undisturbed: Lab) -> None:
    with Ledger.open(undisturbed.home.ledger) as ledger:
        other = ledger.runs.create("other", {"tracking": {"tags": {}}}, "", 1).id
        with pytest.raises(ConfigurationError, match=f"no sweep; sweeps: {undisturbed.sweep}"):
            SweepRecord.of(ledger, other)
