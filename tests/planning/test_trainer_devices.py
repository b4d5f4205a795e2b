"""A plan knows on which devices the trainer learns while engines generate, in seconds and in memory."""

from __future__ import annotations

import dataclasses

import pytest

from tests.planning.examples import SHORT, cluster, spec_7b
from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.memory.demand import demand_of
from yatt_core.planning.plan import RunPlan, plan_run
from yatt_core.planning.roles import roles_of
from yatt_core.planning.time.recommend import PlacementOutcome
from yatt_core.spec import load_spec

LAG = "asynchrony.lag=1"
ENGINE = "kind: virtual, clock_factor: 1, median_tokens: 40, sigma: 0.6, max_num_seqs: 8, base_seconds: 0.05"
LEARNING = (
    "trainer.engine={kind: virtual, ranks: 2, clock_factor: 1, fixed_seconds: 0.1, seconds_per_token: 0.001}",
    f"rollout.engine={{{ENGINE}, instances: 4}}",
    "data.prompts_per_iteration=32",
)
TINY = "model={kind: sizes, hidden_size: 512, layers: 8, heads: 8, key_value_heads: 8, intermediate_size: 1024}"
ON_GPUS = ("data.prompts_per_iteration=16", "rollout.samples_per_prompt=8", TINY, "algorithm.kl=null")


def planned(*changes: str) -> RunPlan:
    """Returns the plan of four virtual instances that judge too."""
    return plan_run(
        load_spec(ROOT / "tests" / "specs" / "virtual.yaml", [*LEARNING, *changes]), cluster("8xcore"), SHORT
    )


def colocated(plan: RunPlan) -> PlacementOutcome:
    assert plan.times is not None
    return next(outcome for outcome in plan.times.tried if outcome.mode == "colocate")


def test_a_step_is_as_long_as_what_the_devices_allow() -> None:
    turns = colocated(planned())
    shared, apart, lent = (colocated(planned(LAG, f"placement.trainer={each}")) for each in ("shared", "apart", "lent"))
    assert turns.step_s == pytest.approx(turns.collect_s + turns.train_s)
    assert apart.collect_s == turns.collect_s, "the trainer has further devices"
    assert apart.step_s == pytest.approx(max(apart.collect_s, apart.train_s))
    assert shared.step_s == apart.step_s < turns.step_s, "virtual engines are not slowed down"
    assert apart.collect_s < lent.collect_s, "two of four instances are away while the trainer learns"
    assert apart.step_s < lent.step_s < turns.step_s
    assert apart.idle > turns.idle, "six devices do what four do"


def test_engines_and_trainer_on_the_same_device_take_the_time_of_both() -> None:
    shared, apart, turns = (on_gpus(*more) for more in ((LAG,), (LAG, "placement.trainer=apart"), ()))
    assert shared.times is not None and apart.times is not None and turns.times is not None
    one = colocated(shared)
    learn_s = one.train_s - shared.times.training.sync_s
    assert max(one.collect_s, one.train_s) < one.step_s <= one.collect_s + one.train_s
    assert one.step_s >= learn_s + shared.times.training.sync_s + 0.5 * one.collect_s, "engines work most of the time"
    assert colocated(apart).step_s < one.step_s <= colocated(turns).step_s


def test_devices_that_are_lent_late_are_of_less_use() -> None:
    slower = "trainer.engine.seconds_per_token=0.002"
    quick, slow = (colocated(planned(LAG, "placement.trainer=lent", *more)) for more in ((), (slower,)))
    assert slow.collect_s > quick.collect_s


def test_the_plan_says_how_it_counts() -> None:
    def lines(*changes: str) -> str:
        return "\n".join(planned(*changes).assumed)

    assert "asynchrony" not in lines()
    assert "asynchrony.lag" in lines(LAG) and "lends" in lines(LAG, "placement.trainer=lent")
    assert any("both need there" in line for line in on_gpus(LAG).assumed)
    apart = lines(LAG, "placement.trainer=apart")
    assert "asynchrony.lag" in apart and "both need there" not in apart and "lends" not in apart
    assert "as if it began once everything is collected" in lines("asynchrony.streamed=true")


def on_gpus(*changes: str) -> RunPlan:
    """Returns the plan of torch engines and a trainer that takes about as long as they do."""
    engines = "rollout.engine={kind: torch, instances: 3}"
    spec = spec_7b(*ON_GPUS, engines, "trainer.engine={kind: torch, ranks: 1}", *changes)
    return plan_run(spec, cluster("4xH200"), dataclasses.replace(SHORT, training_mfu=0.01))


def test_a_device_of_the_trainers_own_holds_nothing_of_the_engines() -> None:
    shared = on_gpus(LAG)
    apart = on_gpus(LAG, "placement.trainer=apart")
    for one, other in zip(shared.demand.totals, apart.demand.totals, strict=True):
        roles = [row.at(one.stage).total for row in shared.demand.roles]
        assert one.tensors == sum(roles) and other.tensors == max(row.at(one.stage).total for row in apart.demand.roles)
        assert other.host == one.host
    assert (shared.demand.apart, apart.demand.apart) == (0, 1)
    assert not any("do not train" in warning for warning in apart.warnings)


def test_engines_that_fill_what_is_left_leave_the_trainer_its_devices() -> None:
    spec = spec_7b(*ON_GPUS, LAG, "trainer.engine={kind: torch, ranks: 2}", "placement.trainer=apart")
    assert demand_of(roles_of(spec, Assumptions()), cluster("8xH200"), Assumptions()).instances == 6
    two = demand_of(roles_of(spec, Assumptions()), cluster("4xH200,2 nodes"), Assumptions())
    assert two.instances == 6
    few = cluster("2xH200")
    assert demand_of(roles_of(spec, Assumptions()), few, Assumptions()).apart == 0, "torch's ranks share devices"
    sharded = spec_7b(*ON_GPUS, LAG, "trainer.engine={kind: fsdp2, ranks: 2}", "placement.trainer=apart")
    with pytest.raises(ConfigurationError, match=r"^placement.trainer: apart, .* 2 ranks leave none of 2 devices"):
        demand_of(roles_of(sharded, Assumptions()), few, Assumptions())


def test_the_number_of_simulated_instances_that_are_lent_is_scaled_down() -> None:
    spec = load_spec(
        ROOT / "tests" / "specs" / "virtual.yaml",
        [*LEARNING, LAG, "placement.trainer=lent", "rollout.engine.instances=128", "trainer.engine.ranks=32"],
    )
    plan = plan_run(spec, cluster("128xcore"), SHORT)
    assert plan.times is not None and plan.times.load.beside is not None
    assert (plan.times.load.scale, plan.times.load.beside.lent) == (4, 8)
