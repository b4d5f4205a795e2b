"""The contract that every trainer keeps, checked against a plain transformers model and against itself.

`make test` runs one layout of each engine, `make verify` all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engines.rollout.served.kept_by_engine import served
from tests.engines.sync.members import Members
from tests.engines.train.groups import Found, Job, run_ranks
from tests.engines.train.layouts import (
    CLIP,
    IN_BFLOAT16,
    LAYOUTS,
    REPEATING,
    SEVERAL_STEPS,
    UNCLIPPED,
    Arrays,
    Expected,
    Layout,
    expect,
    spec_of,
)
from tests.engines.train.support import make_engine, random_task, update, weights_of
from yatt_core.digests import weights_digest
from yatt_core.protocols.receipts import UpdateReceipt
from yatt_core.wire.parts import contributed

PLAIN, CLIPPED, SEVERAL, RESTORED, SKIPPED, OFFLOADED, LEVEL, FOREIGN = range(8)
"""Job numbers: one step per iteration without and with clipping; several steps; the same from its own checkpoint at
version 2; with a skipped iteration; with tensors offloaded in between; with equal rewards; from the
one-rank torch trainer's checkpoint."""


Expectations = Callable[[str], Expected]


@pytest.fixture(scope="module")
def expectations(tmp_path_factory: pytest.TempPathFactory) -> Expectations:
    """Returns a function from a model family to its expected results."""
    return cache(lambda family: expect(tmp_path_factory.mktemp(family), family))


@dataclass
class Run:
    """The results of one layout.

    ranks: rank -> job -> results.
    saved: its own checkpoint at version 2.
    """

    layout: Layout
    expected: Expected
    ranks: list[list[Found]]
    saved: Path

    def job(self, number: int) -> Found:
        return self.ranks[0][number]


@pytest.fixture(scope="module", params=LAYOUTS)
def run(request: pytest.FixtureRequest, expectations: Expectations, tmp_path_factory: pytest.TempPathFactory) -> Run:
    layout = request.param
    folder = tmp_path_factory.mktemp("ranks")
    expected = expectations(layout.family)
    saved = folder / "saved"
    five = range(1, 6)
    several = spec_of(layout.engine, CLIP, SEVERAL_STEPS)
    jobs = [
        Job(spec_of(layout.engine, UNCLIPPED), expected.model, five),
        Job(spec_of(layout.engine, CLIP), expected.model, five, records_sent=True),
        Job(several, expected.model, range(1, 5), save=saved, save_at=2, rejoin_at=3),
        Job(several, expected.model, (3, 4), restore=(saved, 2)),
        Job(several, expected.model, range(1, 3), skips=(2,)),
        Job(several, expected.model, range(1, 5), offloads={1: True, 2: False, 3: True, 4: True}),
        Job(spec_of(layout.engine, CLIP, {"mini_batches": 2}), expected.model, range(1, 4), level=(2, 3)),
    ]
    if layout.has_model:
        jobs.append(Job(several, expected.model, (3, 4), restore=(expected.checkpoint, 2)))
    return Run(layout, expected, run_ranks(layout.ranks, jobs, folder), saved)


@pytest.fixture
def model_run(run: Run) -> Run:
    if not run.layout.has_model:
        pytest.skip("has no model")
    return run


def assert_close(found: Arrays, wanted: Arrays, tolerance: float = 1e-6) -> None:
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=tolerance, rtol=0, err_msg=name)


def norms_of(receipts: Sequence[UpdateReceipt]) -> list[float]:
    return [receipt.metrics["grad_norm"] for receipt in receipts]


@pytest.mark.parametrize("number", [PLAIN, CLIPPED], ids=["unclipped", "clipped"])
def test_five_updates_equal_a_plain_loop(model_run: Run, number: int) -> None:
    expected = model_run.expected
    clip = (UNCLIPPED, CLIP)[number]
    found = model_run.job(number)
    assert_close(found.weights, expected.weights[clip])
    assert norms_of(found.receipts) == pytest.approx(expected.norms[clip], rel=1e-5)
    assert (max(expected.norms[clip]) > clip) == (number == CLIPPED), "the clipped run clips"


def test_several_steps_with_a_reference_equal_the_torch_trainer(model_run: Run) -> None:
    """Holds although the ranks connect again half-way, each keeping its state."""
    expected = model_run.expected
    found = model_run.job(SEVERAL)
    assert_close(found.weights, expected.several_weights)
    for mine, other in zip(found.receipts, expected.several, strict=True):
        assert mine.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-6)


def test_a_version_is_the_number_of_iterations_learned(run: Run) -> None:
    for jobs in run.ranks:
        assert jobs[PLAIN].versions == [0, 1, 2, 3, 4, 5]
        assert jobs[RESTORED].versions == [2, 3, 4]
        assert [receipt.version for receipt in jobs[RESTORED].receipts] == [3, 4]
        assert all("version" in job.refusal for job in jobs), "a learned iteration is not prepared again"


def test_ranks_agree(run: Run) -> None:
    for jobs in zip(*run.ranks, strict=True):
        for found in jobs:
            assert [r.fingerprint for r in found.receipts] == [r.fingerprint for r in jobs[0].receipts]
    assert run.job(PLAIN).receipts[-1].fingerprint["weights_digest"] == weights_digest(run.job(PLAIN).weights)


def test_a_skip_changes_no_weight(run: Run) -> None:
    learned, skipped = run.job(SKIPPED).receipts
    assert (skipped.version, skipped.metrics, skipped.fingerprint["skipped"]) == (2, {}, 1.0)
    assert skipped.fingerprint["weights_digest"] == learned.fingerprint["weights_digest"]
    assert learned.fingerprint == run.job(SEVERAL).receipts[0].fingerprint


def test_equal_rewards_change_no_weight(model_run: Run) -> None:
    """The optimizer's momentum from iteration 1 must not move the weights in iterations whose rewards are all equal."""
    first, *level = model_run.job(LEVEL).receipts
    assert first.metrics["update/empty_steps"] < 2.0
    for receipt in level:
        assert receipt.metrics["update/empty_steps"] == 2.0
        assert receipt.fingerprint["weights_digest"] == first.fingerprint["weights_digest"]


def test_a_restored_trainer_continues_bit_for_bit(run: Run) -> None:
    undisturbed = run.job(SEVERAL)
    restored = run.job(RESTORED)
    assert [r.fingerprint for r in restored.receipts] == [r.fingerprint for r in undisturbed.receipts[2:]]
    assert [r.metrics for r in restored.receipts] == [r.metrics for r in undisturbed.receipts[2:]]


def test_an_offloaded_trainer_continues_bit_for_bit(run: Run) -> None:
    """Holds whether the trainer is told to reload, or is asked for an update or for its weights without being told."""
    undisturbed = run.job(SEVERAL)
    offloaded = run.job(OFFLOADED)
    assert [r.fingerprint for r in offloaded.receipts] == [r.fingerprint for r in undisturbed.receipts]
    assert [r.metrics for r in offloaded.receipts] == [r.metrics for r in undisturbed.receipts]
    assert weights_digest(offloaded.weights) == weights_digest(undisturbed.weights)


def test_an_offloaded_trainer_has_nothing_on_its_device(model_run: Run) -> None:
    """Applies if the device is an accelerator; on the host, only the gradients are freed."""
    kind = model_run.layout.engine["kind"]
    ranks = model_run.layout.ranks
    on_host_alone = kind == "torch" or (kind == "fsdp2" and ranks == 1)
    for jobs in model_run.ranks:
        accelerated, on_host, *others = jobs[OFFLOADED].offloaded
        assert accelerated.before[0] > 0 and accelerated.whole
        assert on_host.after == (on_host.before[0], 0)
        assert (on_host.before[1] > 0) == (kind != "fsdp2"), "fsdp2 drops gradients after each step"
        if not on_host_alone:
            assert [found.after for found in (accelerated, *others)] == [(0, 0)] * 3


def test_a_checkpoint_of_another_layout_can_be_resumed(model_run: Run, tmp_path: Path) -> None:
    """Holds in both directions: from the one-rank torch trainer to this layout, and back."""
    expected = model_run.expected
    assert_close(model_run.job(FOREIGN).weights, expected.several_weights)
    spec = spec_of({"kind": "torch", "ranks": 1}, CLIP, SEVERAL_STEPS)
    engine = make_engine(spec, tmp_path, expected.model)
    engine.restore(model_run.saved, 2)
    for iteration in (3, 4):
        update(engine, random_task(tmp_path, iteration))
    assert_close(weights_of(engine), model_run.job(SEVERAL).weights)


def test_the_ranks_parts_make_up_every_tensor_exactly_once(model_run: Run) -> None:
    """Ranks that hold the same part hold the same numbers, and one of them contributes each of these."""
    whole = {kind: joined(model_run, kind) for kind in ("weights", "exp_avg", "exp_avg_sq", "reference")}
    weights = model_run.job(SEVERAL).weights
    assert_close(whole["weights"], weights, tolerance=0.0)
    assert {kind: sorted(tensors) for kind, tensors in whole.items()} == dict.fromkeys(whole, sorted(weights))
    for name, moment in whole["exp_avg_sq"].items():
        assert moment.shape == weights[name].shape and (moment >= 0).all()
    initial = joined(model_run, "reference", RESTORED)
    assert_close(whole["reference"], initial, tolerance=0.0)


def test_what_changes_between_updates_makes_up_the_weights(model_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank sends the changes of its own parts; an engine that applies them has the trainer's weights, rounded."""
    sent = [jobs[CLIPPED].sent for jobs in model_run.ranks]
    engine = served(Path(model_run.expected.model), monkeypatch)
    members = Members(model_run.layout.ranks, [engine])
    for version in range(6):
        parts = [[replace(part, values=torch.from_numpy(part.values)) for part in rank[version]] for rank in sent]
        for each in members.transfer(version, parts, "bfloat16", delta=True):
            each.result()
    assert engine.version == 5
    for name, array in model_run.job(CLIPPED).weights.items():
        if name in engine.loaded:
            assert torch.equal(engine.loaded[name], torch.from_numpy(array).to(torch.bfloat16)), name
    assert engine.loaded.keys() == engine.shapes.keys()
    engine.close()


def joined(run: Run, kind: str, number: int = SEVERAL) -> Arrays:
    """Joins the parts that the ranks contribute, and compares them with all parts that the ranks hold."""
    held = [(rank, jobs[number].parts[kind]) for rank, jobs in enumerate(run.ranks)]
    found: Arrays = {}
    counts: Arrays = {}
    for rank, parts in held:
        for part in contributed(parts, rank):
            at = part.box.slices((0,) * len(part.shape))
            found.setdefault(part.name, np.zeros(part.shape, np.float32))[at] = part.values
            counts.setdefault(part.name, np.zeros(part.shape, np.int64))[at] += 1
    assert all((count == 1).all() for count in counts.values())
    for _, parts in held:
        for part in parts:
            np.testing.assert_array_equal(part.values, found[part.name][part.box.slices((0,) * len(part.shape))])
    return found


@pytest.mark.parametrize("layout", IN_BFLOAT16)
def test_bfloat16_keeps_weights_in_float32(layout: Layout, expectations: Expectations, tmp_path: Path) -> None:
    expected = expectations(layout.family)
    job = Job(spec_of(layout.engine, UNCLIPPED), expected.model, range(1, 6))
    found = run_ranks(layout.ranks, [job], tmp_path)[0][0]
    assert {array.dtype for array in found.weights.values()} == {np.dtype(np.float32)}
    wanted = expected.weights[UNCLIPPED]
    assert_close(found.weights, wanted, tolerance=5e-3)
    moved = max(np.abs(found.weights[name] - wanted[name]).max() for name in wanted)
    assert moved > 1e-6, "the computation was not in float32"
    low_bits = np.concatenate([array.reshape(-1).view(np.uint32) & 0xFFFF for array in found.weights.values()])
    assert np.count_nonzero(low_bits) > 0.9 * len(low_bits), "weights were never rounded to bfloat16"
    assert norms_of(found.receipts) == pytest.approx(expected.norms[UNCLIPPED], rel=0.1)


@pytest.mark.parametrize("layout", REPEATING)
def test_bfloat16_repeats_its_bits(layout: Layout, expectations: Expectations, tmp_path: Path) -> None:
    """In other processes, and after a restored checkpoint, as an exact run requires."""
    expected = expectations(layout.family)
    spec = spec_of(layout.engine, CLIP, SEVERAL_STEPS)
    assert spec.is_exact and not spec.exact_obstacles()
    saved = tmp_path / "saved"
    whole = Job(spec, expected.model, range(1, 5), save=saved, save_at=2)
    (first, restored), *_ = run_ranks(
        layout.ranks, [whole, Job(spec, expected.model, (3, 4), restore=(saved, 2))], tmp_path / "first"
    )
    (again,), *_ = run_ranks(layout.ranks, [Job(spec, expected.model, range(1, 5))], tmp_path / "again")
    fingerprints = [receipt.fingerprint for receipt in first.receipts]
    assert [receipt.fingerprint for receipt in again.receipts] == fingerprints
    assert [receipt.fingerprint for receipt in restored.receipts] == fingerprints[2:]
    assert weights_digest(again.weights) == weights_digest(restored.weights) == weights_digest(first.weights)
