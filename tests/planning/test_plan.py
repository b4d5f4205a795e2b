"""Plans: examples fit and are explained, an impossible plan names shortage and remedy, a judge adds placement modes."""

from __future__ import annotations

import dataclasses

import pytest

from tests.planning.examples import CONFIGS, SHORT, cluster, judged, on, spec_7b, spec_72b
from yatt_core.cluster.devices import Device
from yatt_core.errors import ConfigurationError
from yatt_core.placement.workload import SwitchCosts
from yatt_core.planning.assumptions import Assumptions, Spread, parse_spread
from yatt_core.planning.cluster import cluster_of, read_cards
from yatt_core.planning.memory.demand import demand_of
from yatt_core.planning.memory.remedies import Larger
from yatt_core.planning.plan import plan_run
from yatt_core.planning.roles import roles_of
from yatt_core.planning.time.load import Load, load_of
from yatt_core.planning.time.recommend import best, outcomes
from yatt_core.planning.time.times import engine_constants, training_times
from yatt_core.spec import load_spec, override_spec

SMALL = ("data.prompts_per_iteration=16", "rollout.samples_per_prompt=8")


@pytest.mark.parametrize("made", [spec_7b, spec_72b])
@pytest.mark.parametrize("devices", ["8xH200", "8xH200,16 nodes"])
def test_the_examples_fit_and_are_explained(made, devices: str):
    """Without a reference, of which the host of a single node would have no room for a copy."""
    plan = plan_run(made(*SMALL, "algorithm.kl=null"), cluster(devices), SHORT)
    assert plan.fits
    assert plan.times is not None
    assert plan.times.recommended.mode == "colocate", "rules alone: there is no judge to share devices with"
    assert plan.times.recommended.step_s > 0
    assert 0 <= plan.times.recommended.idle < 1
    assert plan.times.recommended.tokens_per_second > 0
    assert plan.times.checkpoint_every >= 1
    assert any("prompts of 200:0.3 tokens" in line for line in plan.assumed)
    assert any("datasheet" in line for line in plan.assumed)


def test_an_impossible_plan_names_the_shortage_and_a_remedy():
    spec = spec_72b("trainer.engine.optimizer_cpu_offload=false", "algorithm.kl=null")
    devices = cluster("8xH200")
    plan = plan_run(spec, devices, Assumptions())
    assert not plan.fits
    assert plan.times is None
    learn = next(total for total in plan.demand.totals if total.stage == "learn")
    assert learn.short == learn.tensors + learn.runtime - learn.capacity > 0
    assert ("trainer.engine.optimizer_cpu_offload=true",) in plan.remedies
    for settings in plan.remedies:
        changed = override_spec(spec, settings, "test")
        assert demand_of(roles_of(changed, Assumptions()), devices, Assumptions()).fits
    assert plan.larger == Larger(2, ())
    assert plan_run(spec, cluster("8xH200,2 nodes"), Assumptions()).fits


def test_pairs_are_tried_if_no_single_change_helps():
    spec = spec_72b("trainer.engine.recompute_granularity=none", "trainer.engine.optimizer_cpu_offload=false")
    plan = plan_run(spec, cluster("16xH100"), Assumptions())
    assert not plan.fits
    assert plan.remedies
    assert all(len(settings) == 2 for settings in plan.remedies)


def test_more_nodes_with_a_change_that_uses_them():
    """With 72 billion parameters: more copies would not shard weights and gradients, but more pipeline stages do."""
    devices = cluster("8xL40S")
    plan = plan_run(spec_72b(), devices, Assumptions())
    assert plan.remedies == []
    assert plan.larger is not None
    assert plan.larger.settings == ("trainer.engine.pipeline_model_parallel_size=4",)
    wider = devices.model_copy(update={"nodes": plan.larger.nodes})
    changed = override_spec(spec_72b(), plan.larger.settings, "test")
    assert demand_of(roles_of(changed, Assumptions()), wider, Assumptions()).fits


def test_the_remedy_for_a_large_judge_is_to_shard_it():
    large = {
        "kind": "sizes",
        "hidden_size": 8192,
        "layers": 80,
        "heads": 64,
        "key_value_heads": 8,
        "intermediate_size": 29_568,
    }
    devices = cluster("8xH100")
    spec = spec_7b(*SMALL, judged(model=large))
    plan = plan_run(spec, devices, SHORT)
    assert not plan.fits and "judge" in plan.demand.shortages[0].stage
    assert ("rewards.parts.1.engine.tensor_parallel_size=4",) in plan.remedies
    assert plan_run(override_spec(spec, plan.remedies[0], "test"), devices, SHORT).fits


def test_a_plan_without_a_remedy():
    engine = "rollout.engine={kind: vllm, gpu_memory_utilization: 0.01, tensor_parallel_size: 8}"
    plan = plan_run(spec_72b(engine), cluster("8xL40S"), Assumptions())
    assert (plan.remedies, plan.larger) == ([], None)


def test_constants_match_the_cost_model_of_the_placement():
    """7 billion parameters on an H100: 6 ms, 57 kB over 2.4 TB/s, 31 microseconds per prompt token."""
    devices = cluster("8xH100")
    roles = roles_of(spec_7b(), SHORT)
    found = engine_constants(roles.rollout, roles.policy, demand_of(roles, devices, SHORT).rollout, devices.card, SHORT)
    assert found.base_s == pytest.approx(0.006, rel=0.06)
    assert found.per_context_token_s == pytest.approx(2.4e-8, rel=0.06)
    assert found.per_prompt_token_s == pytest.approx(3.1e-5, rel=0.1)
    assert found.per_sequence_s == pytest.approx(1.5e-5, rel=0.1)


def test_learning_takes_six_operations_per_parameter_and_token():
    devices = cluster("8xH200")
    roles = roles_of(spec_7b("algorithm.mini_batches=1", "algorithm.kl=null"), SHORT)
    times = training_times(roles, demand_of(roles, devices, SHORT), devices, SHORT)
    assert times.prepare_s == 0
    assert times.learn_s == pytest.approx(6 * 7.07e9 / (9.89e14 * 0.35), rel=0.03)
    pulled = roles_of(spec_7b(), SHORT)
    several = training_times(pulled, demand_of(pulled, devices, SHORT), devices, SHORT)
    assert several.prepare_s == pytest.approx(2 / 3 * times.learn_s, rel=1e-6), "old and reference log-probabilities"
    again = roles_of(spec_7b("trainer.engine.recompute_granularity=full"), SHORT)
    assert training_times(again, demand_of(again, devices, SHORT), devices, SHORT).learn_s > 1.3 * times.learn_s


def sync_seconds(devices: str, *overrides: str) -> float:
    roles = roles_of(spec_7b(*overrides), SHORT)
    described = cluster(devices)
    return training_times(roles, demand_of(roles, described, SHORT), described, SHORT).sync_s


def test_a_sync_takes_the_time_of_what_is_sent_in_the_type_of_the_engines():
    parameters = roles_of(spec_7b(), SHORT).policy.parameters
    link = 450e9
    network = 50e9
    whole = 2 * parameters / link
    assert sync_seconds("8xH200") == pytest.approx(whole)
    assert sync_seconds("8xH200", "rollout.engine.tensor_parallel_size=2") == pytest.approx(whole / 2)
    assert sync_seconds("8xH200", "trainer.engine={kind: torch}") == pytest.approx(whole)
    assert sync_seconds("8xH200,2 nodes") == pytest.approx(2 * parameters / (8 * network) + whole)
    adapters = ("trainer.engine={kind: fsdp2}", "trainer.lora={rank: 16, sync: adapter}")
    sent = 4 * roles_of(spec_7b(*adapters), SHORT).adapters
    assert sync_seconds("8xH200", *adapters) == pytest.approx(sent / link)


def test_with_a_judge_the_best_of_several_modes_is_recommended():
    plan = plan_run(spec_7b(*SMALL, judged(judgements=2)), cluster("8xH200"), SHORT)
    assert plan.times is not None
    modes = {outcome.mode for outcome in plan.times.tried}
    assert modes == {"colocate", "split", "dynamic"}
    shortest = min(outcome.step_s for outcome in plan.times.tried)
    assert plan.times.recommended.step_s <= 1.02 * shortest
    assert plan.times.load.workload.switch.role_s > 2, "weights are loaded from the host"
    assert any("judgements of 200:0.3" in line for line in plan.assumed)


def test_engines_of_different_sizes_share_instances_of_the_larger_size():
    plan = plan_run(spec_7b(*SMALL, judged(engine=on(2))), cluster("8xH200"), SHORT)
    assert plan.times is not None
    workload = plan.times.load.workload
    assert workload.cluster.devices_per_instance == 2
    assert workload.engines.rollout.max_concurrent == plan.demand.rollout.sequences, (
        "of one engine, on the first device"
    )
    assert [(each.name, each.count) for each in plan.demand.engines] == [("rollout", 4), ("judge", 4)]
    assert plan.times.load.instances == 4
    stated = plan_run(spec_7b(*SMALL, judged(engine=on(2)), "rollout.engine.instances=4"), cluster("8xH200"), SHORT)
    assert stated.times is not None and stated.times.load.instances == 4


def loaded(devices: str, *overrides: str) -> Load:
    """Returns the load of the policy of 7 billion parameters, without a judge."""
    described = cluster(devices)
    roles = roles_of(spec_7b(*overrides), SHORT)
    demand = demand_of(roles, described, SHORT)
    constants = engine_constants(roles.rollout, roles.policy, demand.rollout, described.card, SHORT)
    training = training_times(roles, demand, described, SHORT)
    switch = SwitchCosts(role_s=0, repartition_s=0, train_s=0)
    return load_of(roles, demand, described, constants, None, switch, training, SHORT)


def test_a_large_load_is_simulated_at_a_part_of_its_size():
    load = loaded("8xH200,16 nodes")
    mean = roles_of(spec_7b(), SHORT).lengths.mean_response
    assert load.scale == 4
    assert len(load.workload.cluster.speeds) == 32
    assert load.workload.samples.prompts == 128
    small = dataclasses.replace(load, workload=load.workload.model_copy(update={"iterations": 1}))
    found = best(outcomes(small, has_judge=False))
    assert found.instances == 128
    assert found.tokens_per_second * found.step_s == pytest.approx(512 * 16 * mean, rel=0.05)


def test_numbers_without_a_near_divisor_are_scaled_down_too():
    load = loaded("10007xH200")
    assert (load.scale, len(load.workload.cluster.speeds), load.instances) == (313, 31, 10007)


def test_a_load_that_cannot_be_scaled_down_is_refused():
    with pytest.raises(ConfigurationError, match=r"data\.prompts_per_iteration: .* at most 50000$"):
        loaded("8xH200", "data.prompts_per_iteration=1000000000000")


def test_devices_without_an_engine_or_a_rank_do_not_slow_learning():
    """Two ranks and two engines learn and generate in the same time, whatever the number of other devices."""
    small = ("rollout.engine={kind: torch, instances: 2}", "trainer.engine={kind: torch, ranks: 2}", *SMALL)
    tiny = "model={kind: sizes, hidden_size: 64, layers: 2, heads: 4, key_value_heads: 4, intermediate_size: 128}"
    plans = [plan_run(spec_7b(*small, tiny), cluster(devices), SHORT) for devices in ("2xH200", "8xH200")]
    two, eight = (plan.times.recommended for plan in plans if plan.times is not None)
    assert eight.train_s == pytest.approx(two.train_s)
    assert eight.collect_s == pytest.approx(two.collect_s)


def test_the_mean_of_truncated_lengths():
    assert Spread(100, 0.0).mean(1000) == 100
    assert Spread(100, 0.0).mean(60) == 60
    assert Spread(100, 0.5).mean(10**6) == pytest.approx(100 * 1.1331, rel=1e-3)
    assert Spread(100, 0.5).mean(120) < 100


@pytest.mark.parametrize("text", ["many", "0", "800:x", "800:-1", "800:9", "nan"])
def test_invalid_lengths_are_refused(text: str):
    with pytest.raises(ConfigurationError, match=r"--response-tokens .*MEDIAN:SIGMA"):
        parse_spread(text, "--response-tokens")
    assert parse_spread("800", "--x") == Spread(800, 0.5)


def test_warnings_name_unused_devices():
    plan = plan_run(
        spec_7b(*SMALL, "rollout.engine.instances=3", "trainer.engine.data_parallel_size=1"), cluster("8xH100"), SHORT
    )
    text = "\n".join(plan.warnings)
    assert "rollout.engine: 5 of 8 devices have no engine" in text
    assert "trainer.engine: 4 of 8 devices do not train" in text


def test_a_layout_that_the_nodes_cannot_hold_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"tensor_model_parallel_size: 8 .*4 devices each \(node 1, node 2\).* 4$"
    ):
        plan_run(spec_72b(), cluster("4xH200,2 nodes"), SHORT)
    within = "trainer.engine.tensor_model_parallel_size=4"
    with pytest.raises(
        ConfigurationError, match=r"^rollout\.engine\.tensor_parallel_size: 8 devices of one node .* 4$"
    ):
        plan_run(spec_72b(*SMALL, within), cluster("4xH200,4 nodes"), SHORT)
    # Each node of six has room for one group of four.
    plan = plan_run(spec_7b(*SMALL, "trainer.engine.data_parallel_size=0"), cluster("6xH200,2 nodes"), SHORT)
    assert (plan.demand.ranks, plan.demand.copies) == (8, 2)


def test_the_nodes_of_a_cluster_that_exists_may_differ():
    gpus = {"a": 4, "b": 8}
    devices = [
        Device(0, "gpu", node, f"{node}:gpu{number}", "H100") for node, count in gpus.items() for number in range(count)
    ]
    found = cluster_of(devices, read_cards())
    assert found is not None
    assert found.by_node == gpus
    wide = "trainer.engine.tensor_model_parallel_size=8", "trainer.engine.data_parallel_size=1"
    assert demand_of(roles_of(spec_72b(*wide), SHORT), found, SHORT).ranks >= 8


@pytest.mark.parametrize("devices", ["8xcore", "8xH200"])
def test_a_plan_refuses_a_batch_of_vllm_that_does_not_work(devices: str) -> None:
    small = ["model.max_positions=4096", "rollout.max_new_tokens=6"]
    engine = "rollout.engine={{kind: vllm, dtype: float32, instances: 1, max_num_seqs: 64, max_num_batched_tokens: {}}}"

    def planned(batch: int) -> None:
        spec = load_spec(CONFIGS / "quickstart.yaml", [*small, engine.format(batch), "data.max_prompt_tokens=100"])
        plan_run(spec, cluster(devices), SHORT)

    least = 106 if devices == "8xcore" else 64
    planned(least)
    with pytest.raises(
        ConfigurationError,
        match=rf"^rollout\.engine\.max_num_batched_tokens: {least - 1} is less than .*; expected at least {least}$",
    ):
        planned(least - 1)


def test_as_many_prompts_in_flight_are_proposed_as_keep_the_engines_full():
    """Whatever the spec has: the prompts of an iteration, and those whose responses fill the places of all engines."""
    torch = (*SMALL, "rollout.engine={kind: torch, instances: 4}", "rollout.batch_samples=24", "algorithm.kl=null")
    sliced = (*torch, "rollout.slice_tokens=256", "algorithm.importance_correction={kind: truncate, cap: 2.0}")
    plan = plan_run(spec_7b(*sliced), cluster("8xH200"), SHORT)
    assert (plan.demand.instances, plan.demand.rollout.sequences) == (4, 24)
    assert plan.in_flight == 16 + 4 * 24 // 8
    assert plan_run(spec_7b(*sliced, "rollout.in_flight=99"), cluster("8xH200"), SHORT).in_flight == plan.in_flight
    assert plan_run(spec_7b(*torch), cluster("8xH200"), SHORT).in_flight is None
