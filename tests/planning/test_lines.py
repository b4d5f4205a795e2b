"""The lines of a plan for the trainer: they name everything that is counted, and grow as what they count does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.grow.plan_lines import CONFIGS, EXAMPLES, example_lines, planned_lines
from tests.planning.examples import SHORT, cluster, spec_7b
from yatt_core.planning.account import LEARN, PREPARE, SFT, SYNC
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import local_cluster, read_cards
from yatt_core.planning.memory.activations import FLOAT, MicroBatchShape
from yatt_core.planning.memory.demand import Demand, demand_of
from yatt_core.planning.memory.megatron_activations import LEARNING, MegatronActivations
from yatt_core.planning.memory.transfers import CHECKED_BYTES
from yatt_core.planning.roles import Roles, roles_of
from yatt_core.planning.shape import ModelShape
from yatt_core.spec import load_spec
from yatt_core.spec.sections.accelerated import MegatronTrainer

DENSE = ModelShape(1000, 64, 2, 4, 2, 16, 256, tied=True)
BATCH = MicroBatchShape(rows=4, tokens=512, counted=256)
FSDP2 = "trainer.engine={kind: fsdp2, ranks: 8}"
TWO_CORES = "trainer.engine={kind: megatron, tensor_model_parallel_size: 2, data_parallel_size: 1, dtype: %s}"


def planned(*overrides: str, cores: bool = False) -> tuple[Roles, Demand]:
    roles = roles_of(spec_7b(*overrides), SHORT)
    devices = local_cluster(read_cards()).model_copy(update={"devices_per_node": 8}) if cores else cluster("8xH200")
    return roles, demand_of(roles, devices, SHORT)


@pytest.mark.parametrize("engine", [(), (FSDP2,)])
def test_the_lines_add_up_to_what_is_counted(engine: tuple[str, ...]) -> None:
    roles, found = planned(*engine)
    lines = planned_lines(roles, found.micro_batch, found.ranks, found.copies)
    rows = {row.role: row for row in found.roles}
    assert lines["reference"] == rows["reference"].at(LEARN).total
    lasting = lines["weights"] + lines["optimizer"] + lines.get("gradients", 0)
    assert rows["trainer"].at(LEARN).total == lasting + lines["learn"]
    gradients = 0 if "gradients" in lines else rows["trainer"].at(PREPARE).gradients
    # What a GPU takes for a digest is no line: the lines are measured on cores.
    for stage, on_gpu in ((PREPARE, 0), (SYNC, CHECKED_BYTES)):
        assert rows["trainer"].at(stage).total == lasting + gradients + lines[stage] + on_gpu
    assert rows["trainer"].host[LEARN].total == lines["checkpoint"], "the buffers, and nothing else, are on the host"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_have_every_line(name: str) -> None:
    config, devices, _ = EXAMPLES[name]
    lines = example_lines(name)
    assert min(lines.values()) > 0 and {"load", "learn", "checkpoint", "sync", "reference"} < lines.keys()
    roles = roles_of(load_spec(CONFIGS / config), Assumptions())
    parameters = roles.policy.parameters
    ranks = demand_of(roles, cluster(devices), Assumptions()).ranks
    assert lines["checkpoint"] == pytest.approx(16 * parameters / ranks), "weights, two moments and the reference"


def test_a_reference_is_put_aside_with_a_copy_of_the_weights() -> None:
    """Both sharded trainers exchange their weights for the reference's while they score it."""
    for engine in ((), (FSDP2,)):
        with_kl, found = planned(*engine)
        without_kl, less = planned(*engine, "algorithm.kl=null")
        lines, fewer = (
            planned_lines(roles, one.micro_batch, one.ranks, one.copies)
            for roles, one in ((with_kl, found), (without_kl, less))
        )
        assert lines["prepare"] - fewer["prepare"] == lines["weights"]
        assert lines["reference"] == lines["weights"] and fewer["reference"] == 0


@pytest.mark.parametrize(("dtype", "copied"), [("bfloat16", 1), ("float32", 0)])
def test_a_checkpoint_on_cores_copies_a_reference_that_has_to_be_widened(dtype: str, copied: int) -> None:
    exact = f"exact={str(dtype == 'float32').lower()}"
    rollout = f"rollout.engine={{kind: torch, instances: 1, dtype: {dtype}}}"
    roles, found = planned(TWO_CORES % dtype, rollout, exact, cores=True)
    lines = planned_lines(roles, found.micro_batch, found.ranks, found.copies)
    assert lines["checkpoint"] == pytest.approx((3 + copied) * FLOAT * roles.policy.parameters / 2)


def test_the_probe_of_supervised_fine_tuning_takes_a_whole_model_on_each_sharded_rank() -> None:
    tuned = "sft={max_steps: 2}"
    for engine in ((), (FSDP2,)):
        roles, found = planned(*engine, tuned)
        trainer = next(row for row in found.roles if row.role == "trainer")
        assert trainer.at(SFT).total - trainer.at(LEARN).total == FLOAT * roles.policy.parameters
        assert SFT in {total.stage for total in found.totals}
        assert SFT not in {total.stage for total in planned(*engine)[1].totals}
    torch_engines = ("trainer.engine={kind: torch, ranks: 8}", "rollout.engine={kind: torch, instances: 8}")
    assert SFT not in {total.stage for total in planned(*torch_engines, tuned)[1].totals}, "it probes its own model"


def test_activations_grow_with_tokens_and_are_divided_by_tensor_parallelism() -> None:
    one = MegatronActivations(MegatronTrainer(), DENSE, BATCH)
    twice = replace(one, batch=replace(BATCH, rows=8, tokens=1024))
    positions = 4 * DENSE.head_size * 2 * BATCH.tokens / BATCH.rows
    assert twice.layer() - positions == 2 * (one.layer() - positions)
    halved = replace(one, engine=MegatronTrainer(tensor_model_parallel_size=2))
    assert halved.layer() - positions == (one.layer() - positions) / 2
    whole = replace(one, engine=MegatronTrainer(tensor_model_parallel_size=2, sequence_parallel=False))
    assert halved.layer() < whole.layer() < one.layer()
    assert replace(one, batch=replace(BATCH, on_cores=False)).layer() < one.layer(), "fused kernels keep less"


def test_a_huge_vocabulary_adds_the_distributions_of_a_chunk_and_the_gradients_of_the_head() -> None:
    wide = replace(DENSE, vocabulary=150_000)
    narrow, found = (MegatronActivations(MegatronTrainer(), shape, BATCH) for shape in (DENSE, wide))
    chunk = BATCH.chunk(150_000) * 150_000 * FLOAT
    gradients = 150_000 * wide.hidden * (2 + FLOAT)
    rest = narrow.ends(False) - LEARNING * 256 * 1000 * FLOAT - 1000 * DENSE.hidden * 2
    assert found.ends(False) == rest + LEARNING * chunk + gradients
    assert found.layer() == narrow.layer()


def test_scoring_holds_three_distributions_of_a_chunk_and_one_more_if_tokens_are_masked() -> None:
    wide = replace(DENSE, vocabulary=150_000)
    engine = MegatronTrainer(tensor_model_parallel_size=2)
    full = MegatronActivations(engine, wide, BATCH)
    one = BATCH.chunk(75_000) * 75_000 * FLOAT
    assert full.scoring() == 3 * one + full.layer_input()
    assert replace(full, batch=replace(BATCH, masked=True)).scoring() - full.scoring() == one
    assert replace(full, shape=replace(wide, vocabulary=149_999)).scoring() - full.scoring() == one, "a padded column"
