"""The workload that draws, divided over ranks by FSDP2: against one rank and whole networks, restored, rejoined, killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import distributed, nn

from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.diffusion.sharded_ranks import ShardedJob, ShardedResult, learnt, run_sharded
from tests.workloads.diffusion.test_drawing import SPEC
from tests.workloads.in_process import OwnRun
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec import RunSpec, load_spec
from yatt_core.workloads.contract import RunFacts
from yatt_core.workloads.diffusion.sharded_drawing import ShardedDrawing
from yatt_core.workloads.diffusion.sharding import shard_network
from yatt_core.workloads.inputs import materialise_workload

pytestmark = NEEDS_DIFFUSERS
SHARDED = "workload.kind=tests.workloads.diffusion.sharded_ranks:BrightSharded"
FASTER = "workload.settings.rate=1e-3"
ADAPTERS = "workload.settings.adapters={rank: 2, alpha: 8}"
METHOD = (
    "workload.settings={{heads: 2, head_width: 8, layers: 1, word_width: 16, pretraining: 11, group: 2, held_out: 1, rows: 8, "
    "evaluation_steps: 2, {}}}"
)
NFT = METHOD.format("method: nft, old_rise: 0.2")
DPO = METHOD.format("method: dpo")
TOLERANCE = 2e-6
"""AdamW turns rounding errors of a small gradient into more than their own size."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    close_process_group()


def spec_of(*overrides: str) -> RunSpec:
    return load_spec(SPEC, ["trainer.engine.ranks=1", *overrides, FASTER])


def with_ranks(spec: RunSpec, ranks: int) -> RunSpec:
    return spec.model_copy(update={"trainer": load_spec(SPEC, [f"trainer.engine.ranks={ranks}"]).trainer})


def difference(one: ShardedResult, other: ShardedResult) -> float:
    assert one.weights.keys() == other.weights.keys()
    return max(float(np.abs(one.weights[name] - other.weights[name]).max()) for name in one.weights)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "others",
    [
        pytest.param((), id="weights"),
        pytest.param((ADAPTERS,), id="adapters", marks=pytest.mark.verify),
        pytest.param((NFT,), id="nft", marks=pytest.mark.verify),
        pytest.param((DPO,), id="dpo", marks=pytest.mark.verify),
    ],
)
def test_two_ranks_learn_what_one_does_and_go_on_from_checkpoints_of_any_number(
    others: tuple[str, ...], tmp_path: Path
) -> None:
    """Three batches: one rank has two, the other one and a spare one."""
    one = spec_of(SHARDED, *others)
    two = with_ranks(one, 2)
    place = tmp_path / "run"
    materialise_workload(one, place)
    saved = tmp_path / "saved"
    whole = ShardedJob(two, place, "whole", save=saved)
    jobs = [
        whole,
        replace(whole, name="rejoined", save=None, rejoins=True),
        ShardedJob(two, place, "restored", restore=(saved, 1)),
    ]
    ranks = run_sharded(2, jobs, tmp_path / "ranks")
    assert [found.digests for found in ranks[0]] == [found.digests for found in ranks[1]]
    assert [found.metrics for found in ranks[0]] == [found.metrics for found in ranks[1]]
    first, rejoined, restored = ranks[0]
    assert len(set(first.digests)) == 4, "each update changes the weights"
    assert rejoined.digests == first.digests and rejoined.metrics == first.metrics
    assert restored.digests == first.digests[1:] and restored.metrics == first.metrics[1:]
    assert all(metrics.get("log_probability_gap", 0.0) == 0.0 < metrics["grad_norm"] for metrics in first.metrics)

    notes = tmp_path / "alone"
    notes.mkdir()
    alone = learnt(0, 1, ShardedJob(one, place, "alone"), notes)
    went_on = learnt(0, 1, ShardedJob(one, place, "went-on", restore=(saved, 1)), tmp_path / "went-on")
    assert went_on.digests[0] == first.digests[1], "what was read is what was written"
    plain = learnt(0, 1, ShardedJob(spec_of(*others), place, "plain"), tmp_path / "plain")
    assert alone.digests[0] == plain.digests[0] == first.digests[0]
    for found in (alone, went_on, plain):
        assert difference(found, first) <= TOLERANCE
        for mine, theirs in zip(found.metrics[::-1], first.metrics[::-1], strict=False):
            assert mine == pytest.approx(theirs, abs=1e-5)
    held = [ranks[rank][0].held for rank in range(2)]
    assert max(held) < 0.7 * alone.held, "no rank holds the whole state"
    for count, numbers in ((1, alone.held), (2, max(held))):
        settings = dict(one.workload.settings | one.workload.tunable)
        stated = ShardedDrawing(RunFacts(seed=1, settings=settings, iterations=3)).needs(count, None).rank
        followed = stated.gradients if NFT in others else 0  # as many numbers as are trained
        assert stated.weights + stated.optimizer + followed == 4 * numbers, "a plan knows the parts"


def test_a_run_of_one_rank_killed_in_its_phases_gives_the_same_bits(tmp_path: Path) -> None:
    """Of several, `tests/flows/runs/test_diffusion.py`: they need a process each."""
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC, SHARDED)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC, SHARDED)
    for number, place in enumerate(("after prepare:1", "after learn:2", "after checkpoint:2", "commit:3")):
        assert struck.drive(place, cold=number % 2 == 1) is None
    struck.drive(cold=True)
    assert struck.results().weights_digest == undisturbed.results().weights_digest is not None
    assert struck.results().metrics_digest == undisturbed.results().metrics_digest


def test_a_lost_rank_is_no_fault_of_the_workload(tmp_path: Path) -> None:
    spec = spec_of(SHARDED)
    materialise_workload(spec, tmp_path / "run")
    lost = RuntimeError("[gloo] Connection closed by peer")
    with (
        mock.patch.object(ShardedDrawing, "_sum_gradients", side_effect=lost),
        pytest.raises(InfrastructureError, match="rank 0 of 1 lost its group"),
    ):
        learnt(0, 1, ShardedJob(spec, tmp_path / "run", "lost"), tmp_path / "lost")


def test_a_workload_with_whole_networks_opens_no_process_wide_group(tmp_path: Path) -> None:
    spec = spec_of()
    materialise_workload(spec, tmp_path / "run")
    learnt(0, 1, ShardedJob(spec, tmp_path / "run", "plain"), tmp_path / "plain")
    assert not distributed.is_initialized()


def test_a_unet_is_not_divided() -> None:
    with pytest.raises(ConfigurationError, match=r"workload.settings.network: unet is not divided over the ranks"):
        ShardedDrawing(RunFacts(seed=1, settings={"network": "unet", "method": "ddpo"}, iterations=1))


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Linear does not say which of its modules are blocks"):
        shard_network(nn.Linear(1, 1), 1)
