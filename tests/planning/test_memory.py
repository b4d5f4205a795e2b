"""The memory account: published formulas for mixed precision, sharding and recomputation; caches and sleeping roles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.planning.examples import QWEN_14B, SHORT, cluster, judged, on, spec_7b
from yatt_core.engines.rollout.torch.sizes import rounded_slots
from yatt_core.errors import ConfigurationError
from yatt_core.planning.account import COLLECT, JUDGE, LEARN, PREPARE, SYNC, Bytes
from yatt_core.planning.cluster import local_cluster, read_cards
from yatt_core.planning.memory.activations import MicroBatchShape, element_bytes, torch_forward, torch_training
from yatt_core.planning.memory.demand import Demand, demand_of
from yatt_core.planning.memory.generation import asked_of_policy
from yatt_core.planning.memory.rollout import vllm_on_cores
from yatt_core.planning.memory.transfers import CHECKED_BYTES
from yatt_core.planning.roles import check_sizes, roles_of
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import VllmRollout

DENSE = ModelShape(1000, 64, 2, 4, 2, 16, 256, tied=True)


def demand(*overrides: str, devices: str = "8xH200") -> Demand:
    roles = roles_of(spec_7b(*overrides), SHORT)
    check_sizes(roles, on_processors=False)
    return demand_of(roles, cluster(devices), SHORT)


def held(found: Demand, role: str, stage: str) -> Bytes:
    return next(row for row in found.roles if row.role == role).at(stage)


def test_mixed_precision_takes_two_four_and_twelve_bytes_per_parameter():
    """As in arXiv 1910.02054, with gradients summed in float32."""
    one = held(demand("trainer.engine.tensor_model_parallel_size=1", devices="1xH200"), "trainer", LEARN)
    parameters = one.weights // 2
    assert parameters == pytest.approx(7.6156e9, rel=1e-3)
    assert one.gradients == 4 * parameters
    assert one.optimizer == 12 * parameters


def test_the_distributed_optimizer_shards_its_state_over_the_copies():
    whole = held(demand("trainer.engine.use_distributed_optimizer=false"), "trainer", LEARN)
    shared = held(demand(), "trainer", LEARN)
    assert whole.optimizer == pytest.approx(2 * shared.optimizer, rel=1e-6)
    assert (whole.weights, whole.gradients) == (shared.weights, shared.gradients)


def test_an_offloaded_optimizer_is_in_host_memory():
    at_home = demand()
    away = demand("trainer.engine.optimizer_cpu_offload=true")
    assert held(away, "trainer", LEARN).optimizer == 0
    host = {total.stage: total.host for total in away.totals}[LEARN]
    assert host >= 8 * held(at_home, "trainer", LEARN).optimizer


def test_weights_on_their_way_are_on_the_gpus_from_which_and_to_which_they_go():
    """Two buckets for each rank and engine, and what a digest takes; with `delta`, host memory has what was sent last."""
    large = 1 << 28
    small = 1 << 20
    devices = {}
    hosts = {}
    for bucket, sync in ((large, "full"), (small, "full"), (small, "delta")):
        engines = "rollout.engine={kind: torch, instances: 8, dtype: bfloat16}"
        found = demand(engines, f"trainer.sync_bucket_bytes={bucket}", f"trainer.sync={sync}")
        devices[bucket] = {total.stage: total.tensors for total in found.totals}
        hosts[bucket, sync] = {total.stage: total.host for total in found.totals}
    saved = devices[large][SYNC] - devices[small][SYNC]
    assert saved == 2 * (2 * (large - small) + CHECKED_BYTES - 2 * small), "a rank's and an engine's"
    assert devices[large][LEARN] == devices[small][LEARN]
    assert hosts[large, "full"] == hosts[small, "full"]
    kept = [hosts[small, "delta"][stage] - hosts[small, "full"][stage] for stage in (COLLECT, SYNC)]
    assert kept[0] == pytest.approx(2 * 7.6156e9, rel=1e-3), "once for all ranks together"
    assert kept[1] - kept[0] == 8 * (2 * small), "engines apply changes there; ranks find them a few numbers at a time"


def test_weights_go_through_host_memory_to_engines_that_share_a_gpu():
    engines = "rollout.engine={kind: torch, instances: 2, dtype: bfloat16}"
    found = demand(engines, "trainer.engine={kind: torch, ranks: 1}", devices="1xH200")
    rows = {row.role: row for row in found.roles}
    assert rows["rollout"].at(SYNC).copies == rows["trainer"].at(SYNC).copies == 0
    bucket = 256 << 20
    assert rows["rollout"].host[SYNC].copies == 2 * 2 * bucket
    assert rows["trainer"].host[SYNC].copies - rows["trainer"].host[LEARN].copies == 2 * bucket


def test_memory_that_vllm_shares_with_its_workers_is_kept_between_updates():
    def copies(*changes: str, engine: str = "kind: vllm, instances: 8", devices: str = "8xH200") -> list[int]:
        found = demand(f"rollout.engine={{{engine}, dtype: bfloat16}}", *changes, devices=devices)
        host = next(row.host for row in found.roles if row.role == "rollout")
        return [host[stage].copies if stage in host else 0 for stage in (COLLECT, LEARN, SYNC)]

    bucket = 256 << 20
    assert copies() == copies(engine="kind: torch, instances: 8") == [0, 0, 0], "they take buckets where they arrive"
    kept = copies("trainer.sync=delta")
    assert kept[0] == kept[1] == kept[2] - 2 * bucket == pytest.approx(2 * 7.6156e9, rel=1e-3), "a copy of the weights"
    adapted = ("trainer.engine={kind: fsdp2}", "trainer.lora={rank: 16, sync: adapter}")
    assert copies(*adapted) == [bucket] * 3, "merged on the host, one after another"
    assert copies(*adapted, engine="kind: torch, instances: 8") == [0, 0, 0]


def test_a_worker_of_vllm_assembles_tensors_on_its_gpu():
    def device(engine: str, *changes: str) -> int:
        found = demand(f"rollout.engine={{{engine}, instances: 8, dtype: bfloat16}}", *changes)
        return held(found, "rollout", SYNC).copies

    buckets = 2 * (256 << 20) + CHECKED_BYTES
    assert device("kind: torch") == device("kind: vllm", "trainer.sync=delta") == buckets
    assert device("kind: vllm") == buckets + 2 * max(152_064 * 3584, 2 * 3584 * 18_944)


def test_low_rank_adapters_alone_have_gradients_moments_and_a_reference():
    fsdp2 = "trainer.engine={kind: fsdp2}"
    whole = demand(fsdp2, "trainer.lora=null")
    adapted = demand(fsdp2, "trainer.lora={rank: 16}")
    before = held(whole, "trainer", LEARN)
    after = held(adapted, "trainer", LEARN)
    adapters = 28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    assert after.gradients == pytest.approx(4 * adapters / 8, rel=1e-6) and after.optimizer == 2 * after.gradients
    assert after.weights == before.weights + after.gradients and after.activations < before.activations
    assert held(adapted, "reference", LEARN).weights == after.gradients
    buffers = [
        next(row.host for row in found.roles if row.role == "trainer")[LEARN].copies for found in (whole, adapted)
    ]
    assert buffers[0] == pytest.approx(4 * before.weights, rel=1e-6), "weights, two moments, the reference"
    assert buffers[1] == pytest.approx(before.weights + 4 * after.gradients, rel=1e-6)


def test_adapters_are_counted_as_peft_makes_them(tmp_path):
    pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    from yatt_core.engines.adapters import add_adapters
    from yatt_core.spec.sections.trainer import LoraSpec

    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=50,
    )  # fmt: skip
    shape = ModelShape(50, 32, 2, 4, 2, 16, 48, tied=False)
    for lora in (LoraSpec(rank=3), LoraSpec(rank=5, targets=("q_proj", "v_proj"))):
        model = LlamaForCausalLM(config)
        add_adapters(model, lora, 0)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert shape.adapter_parameters(lora.rank, lora.targets) == trained


def test_a_host_has_the_shares_of_the_ranks_and_engines_that_are_there():
    def host(*changes: str) -> dict[str, int]:
        return {total.stage: total.host for total in demand(*changes).totals}

    parallel = "trainer.engine.data_parallel_size="
    one, two = (held(demand(f"{parallel}{count}"), "trainer", LEARN).weights for count in (1, 2))
    assert one == two and host(parallel + "1")[LEARN] <= host(parallel + "2")[LEARN]
    few = host("rollout.engine.instances=1")
    many = host("rollout.engine.instances=8")
    weights = held(demand("rollout.engine.instances=1"), "rollout", SYNC).weights
    assert many[LEARN] - few[LEARN] == 7 * weights, "seven sleeping engines less"


def test_recomputation_and_tensor_parallelism_reduce_activations():
    plain = held(demand(), "trainer", LEARN).activations
    assert held(demand("trainer.engine.recompute_granularity=full"), "trainer", LEARN).activations < plain / 2
    wider = held(demand("trainer.engine.tensor_model_parallel_size=2"), "trainer", LEARN).activations
    assert 1.6 * plain < wider < 2 * plain, "twice the tokens, but chunks of the head's distributions stay as large"
    loose = held(demand("trainer.engine.sequence_parallel=false"), "trainer", LEARN).activations
    assert loose > plain


def test_the_first_stage_of_a_pipeline_holds_as_many_micro_batches_as_there_are_stages():
    """As in arXiv 2205.05198, the first stage's activations do not decrease with the number of stages."""
    deep = "trainer.engine={kind: megatron, pipeline_model_parallel_size: %d, micro_batch_tokens: 16384}"
    two, four = (held(demand(deep % stages), "trainer", LEARN) for stages in (2, 4))
    assert two.activations == four.activations
    assert four.weights < 0.6 * two.weights


def test_fsdp2_shards_weights_gradients_and_optimizer():
    two = held(demand("trainer.engine={kind: fsdp2, ranks: 2}", devices="2xH200"), "trainer", LEARN)
    eight = held(demand("trainer.engine={kind: fsdp2}"), "trainer", LEARN)
    for kind in ("weights", "gradients", "optimizer"):
        assert getattr(two, kind) == pytest.approx(4 * getattr(eight, kind), rel=1e-6)
    assert eight.optimizer == 2 * eight.weights
    kept = held(demand("trainer.engine={kind: fsdp2, reshard_after_forward: false}"), "trainer", LEARN)
    assert kept.copies > 2.5 * eight.copies
    offloaded = demand("trainer.engine={kind: fsdp2, cpu_offload: true}")
    assert held(offloaded, "trainer", LEARN).optimizer == 0
    less = held(demand("trainer.engine={kind: fsdp2, activation_checkpointing: true}"), "trainer", LEARN)
    assert less.activations < eight.activations


def test_vllms_cache_is_the_remainder_of_its_share():
    found = demand()
    awake = held(found, "rollout", COLLECT)
    runtime = 4 << 30  # Memory of vLLM's own runtime and of the sleeping trainer's.
    assert awake.total + runtime == pytest.approx(0.85 * 150.8e9, rel=1e-6)
    assert found.rollout.cached_tokens == awake.kv_cache // 57_344
    assert found.rollout.sequences == 256
    halved = demand("rollout.engine.kv_cache_dtype=fp8").rollout
    assert halved.cached_tokens == pytest.approx(2 * found.rollout.cached_tokens, rel=1e-6)
    assert held(found, "rollout", LEARN).total == 0, "it sleeps"
    arriving = 2 * (256 << 20) + CHECKED_BYTES + 2 * 152_064 * 3584
    assert held(found, "rollout", SYNC) == Bytes(weights=awake.weights, copies=arriving), "and what arrives"


def test_vllm_on_cores_has_room_for_the_longest_sequences_and_never_sleeps():
    engine = VllmRollout(dtype="float32", max_num_seqs=8)
    found = vllm_on_cores(engine, DENSE, longest=100)
    assert found.awake.kv_cache == 8 * 100 * 512 == found.asleep.kv_cache, "2 layers of 2 heads of 16 keys and values"
    assert (found.cached_tokens, found.sequences, found.sleeps, found.short) == (800, 8, False, 0)
    small = vllm_on_cores(engine.model_copy(update={"kv_cache_memory_bytes": 40_960}), DENSE, longest=100)
    assert (small.awake.kv_cache, small.sequences, small.short) == (40_960, 1, 10_240)


def test_an_engine_without_room_for_the_longest_sequence_does_not_fit():
    found = demand("rollout.engine.gpu_memory_utilization=0.14")
    assert not found.fits
    assert (found.shortages[0].stage, "share of a device" in found.shortages[0].where) == ("collect", True)


def test_a_sleeping_trainer_is_resident_from_prepare_to_sync_with_its_reference():
    found = demand()
    assert held(found, "reference", PREPARE).weights == held(found, "trainer", PREPARE).weights > 0
    for stage in (PREPARE, LEARN, SYNC):
        assert held(found, "reference", stage) == held(found, "reference", PREPARE)
        assert held(found, "trainer", stage).optimizer == held(found, "trainer", LEARN).optimizer > 0
    assert held(found, "reference", COLLECT).total == held(found, "trainer", COLLECT).total == 0
    assert {row.role for row in demand("algorithm.kl=null").roles} == {"rollout", "trainer"}


def test_a_judge_is_a_separate_role():
    found = demand(judged(engine=on(2)))
    assert found.judge_instances == 4
    assert held(found, "judge", JUDGE).weights == pytest.approx(14.77e9, rel=0.01)
    assert held(found, "judge", COLLECT).total == 0
    assert [total.stage for total in found.totals] == [COLLECT, JUDGE, PREPARE, LEARN, SYNC]


def test_pipeline_stages_may_be_on_several_nodes_but_a_tensor_parallel_group_may_not():
    sizes = ("rollout.engine.tensor_parallel_size=4", "rollout.engine.pipeline_parallel_size=2")
    assert demand(*sizes, devices="8xH200,2 nodes").instances == 2
    assert demand(*sizes, devices="4xH200,4 nodes").instances == 2, "a stage on each node"
    with pytest.raises(ConfigurationError, match=r"^rollout\.engine\.tensor_parallel_size: 4 devices of one node"):
        demand(*sizes, "trainer.engine.tensor_model_parallel_size=2", devices="2xH200,8 nodes")
    with pytest.raises(ConfigurationError, match=r"^rollout\.engine\.instances: .* expected at most 2"):
        demand(*sizes, "rollout.engine.instances=3", devices="4xH200,4 nodes")


def test_the_torch_engines_take_turns_on_a_gpu_through_host_memory():
    engines = ("rollout.engine={kind: torch, dtype: bfloat16}", "trainer.engine={kind: torch, ranks: 1}")
    found = demand(*engines, devices="1xH200")
    weights = held(found, "trainer", LEARN).weights
    assert not found.resident and weights == pytest.approx(4 * 7.6156e9, rel=1e-3)
    assert held(found, "trainer", COLLECT).total == held(found, "rollout", LEARN).total == 0
    assert held(found, "rollout", COLLECT).kv_cache > 0
    host = {total.stage: total.host for total in found.totals}
    # Weights, gradients and moments while others work, and a checkpoint with the reference at all times.
    assert host[COLLECT] >= (4 + 4) * weights and 4 * weights <= host[LEARN] < 5 * weights
    assert held(found, "trainer", LEARN).copies == 0


def test_the_torch_engines_stay_on_a_gpu_with_room_for_all():
    small = "model={kind: sizes, hidden_size: 512, layers: 4, heads: 8, key_value_heads: 8, intermediate_size: 1024}"
    engines = ("rollout.engine={kind: torch, dtype: bfloat16}", "trainer.engine={kind: torch, ranks: 1}")
    found = demand(*engines, small, devices="1xH200")
    assert found.resident
    assert held(found, "trainer", COLLECT) == replace(held(found, "trainer", LEARN), activations=0)
    assert held(found, "rollout", LEARN).weights == held(found, "rollout", COLLECT).weights > 0


def test_the_responses_to_a_prompt_are_in_progress_together_however_few_may_be():
    def cache(most: int) -> int:
        engine = f"rollout.engine={{kind: torch, dtype: float32, continuous: true, max_num_seqs: {most}}}"
        trainer = "trainer.engine={kind: torch, ranks: 1}"
        return held(demand(engine, trainer, "rollout.samples_per_prompt=16"), "rollout", COLLECT).kv_cache

    assert cache(1) == cache(16) < cache(32)


@pytest.mark.parametrize(("dtype", "copied"), [("bfloat16", 2), ("float32", 0)])
def test_cores_may_hold_the_matrices_and_the_cache_of_bfloat16_in_float32(dtype, copied):
    small = "model={kind: sizes, hidden_size: 512, layers: 4, heads: 8, key_value_heads: 8, intermediate_size: 1024}"
    engines = (f"rollout.engine={{kind: torch, dtype: {dtype}}}", "trainer.engine={kind: torch, ranks: 1}")
    roles = roles_of(spec_7b(*engines, small), SHORT)
    found = demand_of(roles, local_cluster(read_cards()), SHORT)
    matrices = 4 * (4 * 512 * 512 + 3 * 512 * 1024) + roles.policy.embedding_parameters
    rollout = held(found, "rollout", COLLECT)
    expected = copied * rollout.weights * matrices / roles.policy.parameters
    assert rollout.copies == pytest.approx(expected, rel=1e-3)
    values = roles.policy.cached_token_values() * 4
    slots = rounded_slots(roles.lengths.longest_prompt + roles.lengths.longest_response)
    rows = asked_of_policy(roles).batch + (dtype == "float32")
    engines = rollout.weights / (roles.policy.parameters * element_bytes(dtype))
    assert rollout.kv_cache == pytest.approx(engines * rows * slots * values)


def test_the_torch_trainer_keeps_more_for_an_entropy_gradient():
    batch = MicroBatchShape(rows=8, tokens=512, counted=256)
    plain = torch_training(DENSE, batch, "float32", entropy_gradient=False)
    assert torch_training(DENSE, batch, "float32", entropy_gradient=True) > plain


def test_the_distributions_of_a_chunk_count_and_not_those_of_all_tokens():
    wide = replace(DENSE, vocabulary=150_000)
    few, many = (MicroBatchShape(rows=8, tokens=4096, counted=counted) for counted in (512, 4096))
    for dtype in ("float32", "bfloat16"):
        kept = (4096 - 512) * wide.hidden * element_bytes(dtype)
        more = torch_training(wide, many, dtype, False) - torch_training(wide, few, dtype, False)
        assert more == kept, "the states that enter the head"
    assert torch_forward(wide, many, "float32") == torch_forward(wide, few, "float32")
    on_card = replace(many, on_cores=False)
    assert torch_forward(wide, on_card, "float32") > torch_forward(wide, many, "float32")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.engine.tensor_parallel_size=3", "tensor_parallel_size: 3 does not divide the model's 28 attention"),
        ("rollout.engine.pipeline_parallel_size=3", "pipeline_parallel_size: 3 does not divide the model's 28 layers"),
        ("rollout.engine.tensor_parallel_size=28", r"tensor_parallel_size: 28 devices of one node .* 8 devices .*at most 8"),
        ("rollout.engine.instances=9", r"rollout.engine.instances: .* need 9 devices, .* 8 devices .*at most 8"),
        ("trainer.engine.tensor_model_parallel_size=7", "7 does not divide the model's 4 key/value heads; .*1, 2, 4"),
        ("trainer.engine.pipeline_model_parallel_size=5", "trainer.engine.pipeline_model_parallel_size: 5 does not divide"),
        ("trainer.engine.data_parallel_size=3", "trainer.engine.data_parallel_size: .* 12 devices, .* 8 .*at most 2"),
        ("trainer.engine.micro_batch_tokens=4096", "micro_batch_tokens: 4096 .* at least 10240"),
        ("trainer.engine={kind: fsdp2, ranks: 9}", "trainer.engine.ranks: .* 9 devices, .* 8"),
    ],
)  # fmt: skip
def test_sizes_that_contradict_each_other_are_named_by_their_key(override: str, says: str):
    with pytest.raises(ConfigurationError, match=says):
        demand(override)


def test_key_value_heads_and_devices_must_divide_each_other():
    with pytest.raises(ConfigurationError, match=r"tensor_parallel_size: .*14 and the model's 4 key/value heads"):
        demand("rollout.engine.tensor_parallel_size=14")


def test_devices_must_divide_the_heads_of_a_vision_tower():
    vision = "model.vision={image_size: 32, patch_size: 8, hidden_size: 48, layers: 1, heads: 3, intermediate_size: 64}"
    policy = "model={kind: from_config, hidden_size: 64, heads: 4, key_value_heads: 2, max_positions: 16384}"
    with pytest.raises(
        ConfigurationError, match=r"2 does not divide the model's 3 attention heads of its vision tower"
    ):
        demand(policy, vision, "rollout.engine.tensor_parallel_size=2")


def test_a_teacher_is_on_the_trainers_ranks(tmp_path: Path):
    folder = model_config(tmp_path, QWEN_14B)
    taught = f"algorithm.distillation={{teachers: [{{model: {{kind: folder, path: {folder}}}}}]}}"
    fsdp2 = "trainer.engine={kind: fsdp2, ranks: %d}"
    alone = "algorithm.kl=null"
    two, eight = (demand(taught, alone, fsdp2 % ranks, devices=f"{ranks}xH200") for ranks in (2, 8))
    assert held(two, "teachers", PREPARE).weights == pytest.approx(14.77e9, rel=0.01), "two bytes over two ranks"
    assert held(two, "teachers", PREPARE).weights == pytest.approx(4 * held(eight, "teachers", PREPARE).weights)
    assert held(eight, "teachers", LEARN) == held(eight, "teachers", PREPARE), (
        "it is resident together with the trainer"
    )
    assert held(eight, "teachers", COLLECT).total == 0
    without = demand(alone, fsdp2 % 8)
    assert held(eight, "trainer", PREPARE).copies > held(without, "trainer", PREPARE).copies, "its layers are larger"
    assert held(eight, "trainer", LEARN) == held(without, "trainer", LEARN)


def test_a_critic_has_its_own_state_and_is_resident_with_the_trainer():
    valued = "algorithm={advantage: {kind: gae}, critic: {}}"
    for engine in ("{kind: fsdp2}", "{kind: torch, ranks: 8}"):
        trainer = f"trainer.engine={engine}"
        found = demand(valued, trainer)
        alone = demand(trainer, "algorithm.kl=null")
        policy = held(found, "trainer", LEARN)
        critic = held(found, "critic", LEARN)
        head = 152_064 * 3584 / policy_shards(engine)
        assert policy.weights - critic.weights == pytest.approx(4 * head, rel=1e-3), (
            "it has no output matrix over the vocabulary"
        )
        assert (critic.gradients, critic.optimizer) == (critic.weights, 2 * critic.weights)
        assert held(found, "trainer", LEARN).activations == held(alone, "trainer", LEARN).activations, "they take turns"
    sleeping = demand(valued, "trainer.engine={kind: fsdp2}")
    values = held(sleeping, "critic", LEARN)
    assert held(sleeping, "critic", PREPARE) == values
    assert held(sleeping, "critic", COLLECT).total == 0
    rest = next(row for row in sleeping.roles if row.role == "critic").host
    assert rest[COLLECT].total == values.total and PREPARE not in rest


def policy_shards(engine: str) -> int:
    return 8 if "fsdp2" in engine else 1


def model_config(folder: Path, sizes: dict[str, Any]) -> Path:
    """Writes the config of a model of these sizes into the folder."""
    names = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "key_value_heads": "num_key_value_heads"}
    config = {names.get(name, name): value for name, value in sizes.items() if name != "kind"}
    text = json.dumps({"model_type": "qwen2", "vocab_size": 152_064, "max_position_embeddings": 32_768, **config})
    (folder / "config.json").write_text(text)
    return folder
