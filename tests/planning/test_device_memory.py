"""Memory is checked before a run starts: roles stay resident if they fit; else they sleep; else the start fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.needs import NEEDS_MEGATRON, NEEDS_VLLM
from tests.planning.examples import CONFIGS, SMALL_JUDGE, cluster
from tests.services import ROOT
from yatt_core.cluster.devices import Device
from yatt_core.errors import ConfigurationError
from yatt_core.planning.account import GIB
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import CORE, DescribedCluster, cluster_of, core_cluster, read_cards, without_card
from yatt_core.planning.memory.device_memory import check_device_memory, lag_obstacle
from yatt_core.planning.roles import check_sizes, roles_of
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.availability import unavailable

CARDS = read_cards()
JUDGED = load_spec(ROOT / "configs" / "genrm.yaml", [SMALL_JUDGE, "rollout.batch_samples=256"])


def cores(gib: float, count: int = 2) -> DescribedCluster:
    """Returns one node whose cores have this much memory in total."""
    card = CARDS[CORE].model_copy(update={"memory_gb": gib * GIB / count / 1e9})
    return DescribedCluster(card_name=CORE, card=card, devices_per_node=count)


def test_roles_are_resident_or_sleep_in_turn_or_do_not_fit() -> None:
    ample = check_device_memory(JUDGED, cores(64))
    assert ample is not None and ample.resident
    peak = peak_of(JUDGED)
    tight = check_device_memory(JUDGED, cores((peak - (1 << 20)) / GIB))
    assert tight is not None and not tight.resident
    kept = {role.role: role.at("learn") for role in tight.roles}
    assert kept["rollout"].kv_cache == kept["judge"].kv_cache == 0 < kept["judge"].weights
    with pytest.raises(ConfigurationError, match=r"2xcore:\n.* GiB more than a node's memory has"):
        check_device_memory(JUDGED, cores(1))


@pytest.mark.parametrize("mode", ["asynchrony.lag=1", "asynchrony.streamed=true"])
def test_engines_that_work_beside_the_trainer_need_memory_of_their_own(mode: str) -> None:
    spec = load_spec(ROOT / "configs" / "genrm.yaml", [SMALL_JUDGE, "rollout.batch_samples=256", mode])
    tight = cores((peak_of(spec) - (1 << 20)) / GIB)
    demands = [(check_device_memory(spec, each), each) for each in (cores(64), tight)]
    said = [lag_obstacle(spec, demand, where) for demand, where in demands if demand is not None]
    assert said[0] == "" and said[1].startswith(f"{mode.partition('=')[0]}: "), said
    alone = check_device_memory(JUDGED, tight)
    assert alone is not None and lag_obstacle(JUDGED, alone, tight) == ""


def test_the_error_says_what_would_fit() -> None:
    spec = load_spec(
        ROOT / "configs" / "quickstart.yaml", ["trainer.engine.micro_batch_tokens=65536", "controllers.count=1"]
    )
    peak = peak_of(load_spec(ROOT / "configs" / "quickstart.yaml", ["trainer.engine.micro_batch_tokens=256"]))
    assert peak_of(spec) > peak
    with pytest.raises(
        ConfigurationError, match=r"it would fit with --set trainer.engine.micro_batch_tokens=\d+\n`yatt plan`"
    ):
        check_device_memory(spec, cores(peak / GIB + 0.01))


@pytest.mark.parametrize(
    "trainer",
    [
        "{kind: fsdp2, ranks: 2, dtype: float32}",
        "{kind: fsdp2, ranks: 2, dtype: float32, cpu_offload: true}",
        "{kind: megatron, tensor_model_parallel_size: 2, data_parallel_size: 1, dtype: float32}",
    ],
)
def test_a_sharded_trainer_on_cores_stays_resident(trainer: str) -> None:
    demand = check_device_memory(
        load_spec(ROOT / "configs" / "quickstart.yaml", [f"trainer.engine={trainer}"]), cores(64)
    )
    assert demand is not None and not any(total.host for total in demand.totals)
    (row,) = [role for role in demand.roles if role.role == "trainer"]
    assert row.at("collect").optimizer == row.at("learn").optimizer > 0 == row.at("collect").activations


def peak_of(spec: RunSpec) -> int:
    """Returns the peak bytes of any stage with all roles resident."""
    demand = check_device_memory(spec, cores(640))
    assert demand is not None
    return max(total.tensors + total.runtime for total in demand.totals)


def test_models_of_unknown_shape_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    spec = load_spec(ROOT / "configs" / "quickstart.yaml", [f"model={{kind: folder, path: {tmp_path}}}"])
    assert check_device_memory(spec, cores(0.001)) is None


def gpu(number: int, model: str, node: str = "a") -> Device:
    return Device(number, "gpu", node, f"{node}:gpu{number}", model=model)


def test_a_ray_cluster_has_the_memory_of_its_smallest_device() -> None:
    found = cluster_of(
        [Device(n, "core", node, "", memory=n * GIB) for n, node in [(2, "a"), (3, "a"), (4, "b")]], CARDS
    )
    assert found is not None and (found.card_name, found.devices_per_node, found.nodes) == (CORE, 2, 2)
    assert (found.memory, found.memories) == (4 * GIB, 2)
    found = cluster_of([gpu(0, "H200"), gpu(1, "H200")], CARDS)
    assert found is not None and (found.card_name, found.memories) == ("H200", 2), "not an H20"
    found = cluster_of([gpu(0, "H100"), gpu(0, "A100", "b")], CARDS)
    assert found is not None and found.card_name == "A100-40", "the smaller one of that name"
    assert cluster_of([gpu(0, "H200"), gpu(1, "")], CARDS) is None
    assert without_card([gpu(0, "H200"), gpu(1, "", "b")], CARDS) == {"b"}
    found = cluster_of([gpu(0, "H200"), replace(gpu(1, "Abacus 9", "b"), memory=30 * GIB)], CARDS)
    assert found is not None and (found.card_name, found.memory, found.memories) == ("Abacus 9", 30 * GIB, 2)
    assert core_cluster(CARDS).memories == 1


@pytest.mark.parametrize(("stated", "longest"), [(1024, 58), (1000, 58), (40, 40)])
def test_the_length_of_prompts_gives_way_to_the_positions_of_a_small_model(stated: int, longest: int) -> None:
    small = ["model.max_positions=64", "rollout.max_new_tokens=6"]
    path = ROOT / "configs" / "quickstart.yaml"
    roles = roles_of(load_spec(path, [*small, f"data.max_prompt_tokens={stated}"]), Assumptions())
    check_sizes(roles, on_processors=True)
    assert roles.lengths.longest_prompt == longest


def test_a_response_that_takes_all_positions_is_refused() -> None:
    """The sizes of a model in a folder are known only here; those in a spec are checked when it is read."""
    roles = roles_of(load_spec(ROOT / "configs" / "quickstart.yaml"), Assumptions())
    response = roles.lengths.longest_response
    with pytest.raises(ConfigurationError, match=rf"rollout\.max_new_tokens: .*{response} .* at most {response - 1}"):
        check_sizes(replace(roles, policy=replace(roles.policy, max_positions=response)), on_processors=True)


@NEEDS_VLLM
@NEEDS_MEGATRON
def test_a_model_of_72_billion_parameters_lacks_only_devices(tmp_path: Path) -> None:
    sizes = yaml.safe_load((CONFIGS / "plan-72b-grpo.yaml").read_text())["model"]
    names = {
        "vocabulary_size": "vocab_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
        "key_value_heads": "num_key_value_heads", "max_positions": "max_position_embeddings",
        "tie_embeddings": "tie_word_embeddings",
    }  # fmt: skip
    config = {names.get(key, key): value for key, value in sizes.items()} | {"model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = load_spec(CONFIGS / "plan-72b-grpo.yaml", [f"model={{kind: folder, path: {tmp_path}}}"])
    assert unavailable(spec) == []
    with pytest.raises(ConfigurationError, match=r"needs 128 devices, in groups of 8 on one node, .*node 8\)"):
        check_device_memory(spec, cluster("8xH200,8 nodes"))
    demand = check_device_memory(spec, cluster("8xH200,16 nodes"))
    assert demand is not None and (demand.ranks, demand.instances) == (128, 16)
