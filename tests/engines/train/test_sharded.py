"""Trainers whose ranks share a model, against a plain model of transformers and against the torch trainer on one rank.

One engine in `make test`, all of them and their layouts in `make verify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engines.train.groups import Found, Job, run_ranks
from tests.engines.train.plain import plain_grpo_step
from tests.engines.train.support import batch_of, make_engine, make_model_folder, make_spec, random_task, update
from yatt_core.digests import weights_digest
from yatt_core.receipts import UpdateReceipt
from yatt_core.spec.run import RunSpec

RATE, UNCLIPPED, CLIP = 1e-3, 1e9, 0.3
SEVERAL_STEPS = {"mini_batches": 2, "kl": {"coefficient": 0.05}, "entropy_bonus": 0.01}
BUDGET = 60
"""Tokens of a micro-batch; a rank's share of a step takes several."""


@dataclass(frozen=True)
class Case:
    """An engine under a layout. engine: its part of the spec."""

    ranks: int
    engine: dict[str, Any] = field(hash=False)
    name: str


def fsdp2(name: str, ranks: int, **options: Any) -> Any:
    engine = {"kind": "fsdp2", "ranks": ranks, "dtype": "float32", **options}
    marks = [] if name == "fsdp2" else [pytest.mark.verify]
    return pytest.param(Case(ranks, engine, name), id=name, marks=marks)


CASES = [
    fsdp2("fsdp2", 2, activation_checkpointing=True),
    fsdp2("fsdp2-kept", 2, reshard_after_forward=False),
    fsdp2("fsdp2-one", 1),
    fsdp2("fsdp2-four", 4),
]


def spec_of(engine: dict[str, Any], clip: float, algorithm: dict[str, Any] | None = None) -> RunSpec:
    optimizer = {"learning_rate": RATE, "epsilon": 1e-4, "weight_decay": 0.05, "max_grad_norm": clip}
    trainer = {"engine": {**engine, "micro_batch_tokens": BUDGET}, "optimizer": optimizer}
    return make_spec(trainer=trainer, algorithm=algorithm or {"kind": "grpo"})


@dataclass
class Expected:
    """What a single process comes to. snapshot: of the torch trainer at version 2, under `SEVERAL_STEPS`."""

    model: Path
    weights: dict[float, dict[str, np.ndarray[Any, Any]]]
    norms: dict[float, list[float]]
    several: list[UpdateReceipt]
    several_weights: dict[str, np.ndarray[Any, Any]]
    snapshot: Path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    folder = tmp_path_factory.mktemp("expected")
    model = make_model_folder(folder / "model")
    weights, norms = {}, {}
    for clip in (UNCLIPPED, CLIP):
        weights[clip], norms[clip] = plain_run(folder, model, clip)
    engine = make_engine(spec_of({"kind": "torch", "ranks": 1}, CLIP, SEVERAL_STEPS), folder, model)
    receipts = []
    for iteration in range(1, 5):
        receipts.append(update(engine, random_task(folder, iteration)))
        if iteration == 2:
            (folder / "snapshot").mkdir()
            engine.freeze_state()(folder / "snapshot")
    several = {name: array.copy() for name, array in engine.export_weights().items()}
    return Expected(model, weights, norms, receipts, several, folder / "snapshot")


def plain_run(folder: Path, path: Path, clip: float) -> tuple[dict[str, np.ndarray[Any, Any]], list[float]]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    adamw = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.05)
    norms = []
    for iteration in range(1, 6):
        task = random_task(folder / str(clip), iteration)
        batch = batch_of(folder / str(clip), task)
        norms.append(plain_grpo_step(model, adamw, batch, 0.8, clip))
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}, norms


@dataclass
class Run:
    """Of one case. ranks: rank -> job. saved: its own snapshot at version 2."""

    case: Case
    ranks: list[list[Found]]
    saved: Path

    def job(self, number: int) -> Found:
        return self.ranks[0][number]


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, expected: Expected, tmp_path_factory: pytest.TempPathFactory) -> Run:
    case, folder = request.param, tmp_path_factory.mktemp("ranks")
    saved, five = folder / "saved", range(1, 6)
    several = spec_of(case.engine, CLIP, SEVERAL_STEPS)
    jobs = [
        Job(spec_of(case.engine, UNCLIPPED), expected.model, five),
        Job(spec_of(case.engine, CLIP), expected.model, five),
        Job(several, expected.model, range(1, 5), save=saved, save_at=2, rejoin_at=3),
        Job(several, expected.model, (3, 4), restore=(saved, 2)),
        Job(several, expected.model, (3, 4), restore=(expected.snapshot, 2)),
    ]
    return Run(case, run_ranks(case.ranks, jobs, folder), saved)


def assert_close(found: dict[str, np.ndarray[Any, Any]], wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6, rtol=0, err_msg=name)


def norms_of(receipts: Sequence[UpdateReceipt]) -> list[float]:
    return [receipt.metrics["grad_norm"] for receipt in receipts]


@pytest.mark.parametrize("number", [0, 1], ids=["unclipped", "clipped"])
def test_five_updates_equal_a_plain_loop(run: Run, expected: Expected, number: int) -> None:
    clip, found = (UNCLIPPED, CLIP)[number], run.job(number)
    assert_close(found.weights, expected.weights[clip])
    assert norms_of(found.receipts) == pytest.approx(expected.norms[clip], rel=1e-5)
    assert (max(expected.norms[clip]) > clip) == (number == 1), "the clipped run clips"


def test_several_steps_with_a_reference_equal_the_torch_trainer(run: Run, expected: Expected) -> None:
    """Its ranks meet anew in the middle, each keeping what it holds."""
    found = run.job(2)
    assert_close(found.weights, expected.several_weights)
    for mine, other in zip(found.receipts, expected.several, strict=True):
        assert mine.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-6)


def test_ranks_agree(run: Run) -> None:
    for jobs in zip(*run.ranks, strict=True):
        for found in jobs:
            assert [r.fingerprint for r in found.receipts] == [r.fingerprint for r in jobs[0].receipts]
            assert "wanted is" in found.refusal
    assert run.job(0).receipts[-1].fingerprint["weights_digest"] == weights_digest(run.job(0).weights)


def test_a_restored_trainer_goes_on_bit_for_bit(run: Run) -> None:
    undisturbed, restored = run.job(2), run.job(3)
    assert [r.fingerprint for r in restored.receipts] == [r.fingerprint for r in undisturbed.receipts[2:]]
    assert [r.metrics for r in restored.receipts] == [r.metrics for r in undisturbed.receipts[2:]]


def test_a_snapshot_of_another_layout_goes_on(run: Run, expected: Expected, tmp_path: Path) -> None:
    """Of one rank of the torch trainer here, and from here there."""
    assert_close(run.job(4).weights, expected.several_weights)
    spec = spec_of({"kind": "torch", "ranks": 1}, CLIP, SEVERAL_STEPS)
    engine = make_engine(spec, tmp_path, expected.model)
    engine.restore(run.saved, 2)
    for iteration in (3, 4):
        update(engine, random_task(tmp_path, iteration))
    assert_close(dict(engine.export_weights()), run.job(2).weights)
