"""Low-rank adapters on the torch trainer and FSDP2: what is learned, sent, and restored from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.plain import plain_grpo_step
from tests.engines.train.support import batch_of, make_engine, make_spec, random_task, saved_tensors, update, weights_of
from tests.needs import NEEDS_PEFT
from yatt_core.checkpoints.contents import ADAPTERS
from yatt_core.engines.adapters import add_adapters, is_adapter, share_of, with_adapters
from yatt_core.engines.rollout.merging import MergingTaker
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.models.loading import load_causal_lm
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.trainer import LoraSpec
from yatt_core.wire.buckets import WeightBucket, bucket_digest, buckets_of
from yatt_core.wire.number_types import BFLOAT16

pytestmark = NEEDS_PEFT
TARGETS = ["q_proj", "down_proj"]
TORCH = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 60}


def lora_spec(engine: dict[str, Any] = TORCH, algorithm: dict[str, Any] | None = None, **lora: Any) -> RunSpec:
    optimizer = {"learning_rate": 1e-3, "epsilon": 1e-4, "weight_decay": 0.05}
    adapters = {"rank": 2, "alpha": 3.0, "targets": TARGETS, **lora}
    trainer = {"engine": engine, "optimizer": optimizer, "lora": adapters}
    return make_spec(trainer=trainer, algorithm=algorithm or {})


def copied(engine: TorchTrainEngine) -> dict[str, np.ndarray[Any, Any]]:
    return weights_of(engine)


def test_only_the_targets_learn(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(lora_spec(), tmp_path, model_folder)
    before = copied(engine)
    initial = load_causal_lm(str(model_folder), "float32").state_dict()
    assert all((before[name] == initial[name].numpy()).all() for name in before), "fresh adapters change nothing"
    for iteration in (1, 2):
        update(engine, random_task(tmp_path, iteration))
    for name, array in copied(engine).items():
        ranks = np.linalg.matrix_rank(array - before[name], tol=1e-7) if array.ndim == 2 else 0
        assert ranks == (2 if name.split(".")[-2] in TARGETS and name.endswith(".weight") else 0), name


def test_updates_equal_a_plain_loop(tmp_path: Path, model_folder: Path) -> None:
    spec = lora_spec()
    engine = make_engine(spec, tmp_path, model_folder)
    model = load_causal_lm(str(model_folder), "float32")
    assert spec.trainer.lora is not None
    add_adapters(model, spec.trainer.lora, spec.seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(trained, 1e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.05)
    for iteration in range(1, 6):
        task = random_task(tmp_path, iteration)
        receipt = update(engine, task)
        norm = plain_grpo_step(model, adamw, batch_of(tmp_path, task), 0.8)
        assert receipt.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    own = dict(engine.policy.adapters())
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            np.testing.assert_allclose(own[name].numpy(), parameter.detach().numpy(), atol=1e-6, rtol=0, err_msg=name)


def test_adapters_are_enough_to_rebuild_the_weights(tmp_path: Path, model_folder: Path) -> None:
    merged, alone = (make_engine(lora_spec(sync=sync), tmp_path, model_folder) for sync in ("merged", "adapter"))
    for engine in (merged, alone):
        update(engine, random_task(tmp_path, 1))
    sent = copied(alone)
    wanted = copied(merged)
    assert len(sent) == 2 * 2 * len(TARGETS), "two tensors for each target in two layers"
    found = dict(with_adapters(model_folder, sent, share_of(LoraSpec(rank=2, alpha=3.0))))
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    with pytest.raises(DataError, match=f"^{model_folder}: .*x_proj"):
        list(with_adapters(model_folder, {n.replace("q_proj", "x_proj"): array for n, array in sent.items()}, 1.0))


def test_an_engine_that_gets_only_adapters_has_the_same_weights(tmp_path: Path, model_folder: Path) -> None:
    merged, alone = (make_engine(lora_spec(sync=sync), tmp_path, model_folder) for sync in ("merged", "adapter"))
    for engine in (merged, alone):
        update(engine, random_task(tmp_path, 1))
    rollout = TorchRolloutEngine(str(model_folder), "float32", 16, 4, tmp_path)
    taker = MergingTaker(rollout, model_folder, share_of(LoraSpec(rank=2, alpha=3.0)), 1000)
    taker.begin_update(1)
    buckets = list(buckets_of(alone.stream_weights(), 100))
    assert len(buckets) > 2
    for bucket in buckets:
        taker.take(bucket)
        assert rollout.version == -1
    taker.end_update()
    assert rollout.version == 1
    wanted = copied(merged)
    assert sorted(rollout._tensors) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(rollout._tensors[name].numpy(), array, err_msg=name)
    taker.begin_update(2)
    taker.take(buckets[0])
    with pytest.raises(InfrastructureError, match=r"last bucket .*\b1\b"):
        taker.end_update()
    assert rollout.version == -1


def test_adapters_in_bfloat16_are_merged_as_the_numbers_that_they_are(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(lora_spec(sync="adapter"), tmp_path, model_folder)
    update(engine, random_task(tmp_path, 1))
    rounded = {name: torch.from_numpy(array).bfloat16() for name, array in engine.stream_weights()}
    taken = []
    bits = {name: each.view(torch.uint16).numpy() for name, each in rounded.items()}
    numbers = {name: each.float().numpy() for name, each in rounded.items()}
    for sent in (bits, numbers):
        rollout = TorchRolloutEngine(str(model_folder), "float32", 16, 4, tmp_path)
        taker = MergingTaker(rollout, model_folder, 1.5, 1000)
        taker.begin_update(1)
        for bucket in buckets_of(sent.items()):
            taker.take(as_bfloat16(bucket))
        taker.end_update()
        taken.append({name: tensor.clone() for name, tensor in rollout._tensors.items()})
    for name, tensor in taken[0].items():
        assert torch.equal(tensor, taken[1][name]), name


def as_bfloat16(bucket: WeightBucket) -> WeightBucket:
    """Returns a bucket whose 16-bit integers are the bits of numbers in bfloat16, as a rank sends them."""
    places = tuple(replace(each, kind=BFLOAT16 if each.kind == "uint16" else each.kind) for each in bucket.places)
    return replace(bucket, places=places, digest=bucket_digest(places, bucket.data))


@pytest.mark.parametrize("kl", [None, {"where": "loss"}])
def test_a_restored_trainer_continues_bit_for_bit(
    tmp_path: Path, model_folder: Path, kl: dict[str, str] | None
) -> None:
    spec = lora_spec(algorithm={"kl": kl, "mini_batches": 2})
    undisturbed, restored = (make_engine(spec, tmp_path, model_folder) for _ in range(2))
    for iteration in (1, 2):
        update(undisturbed, random_task(tmp_path, iteration))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    undisturbed.freeze_state()(checkpoint)
    assert all(is_adapter(name) for name in saved_tensors(checkpoint, ADAPTERS))
    expected = [update(undisturbed, random_task(tmp_path, iteration)) for iteration in (3, 4)]
    restored.restore(checkpoint, 2)
    found = [update(restored, random_task(tmp_path, iteration)) for iteration in (3, 4)]
    assert [receipt.fingerprint for receipt in found] == [receipt.fingerprint for receipt in expected]


def test_state_of_other_adapters_is_refused(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(lora_spec(), tmp_path, model_folder)
    saved = tmp_path / "saved"
    update(engine, random_task(tmp_path, 1))
    saved.mkdir()
    engine.freeze_state()(saved)
    for other in (lora_spec(rank=3), lora_spec(targets=TARGETS[:1])):
        with pytest.raises(DataError, match="lora_"):
            make_engine(other, tmp_path, model_folder).restore(saved, 1)


def test_a_missing_target_is_named(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"trainer\.lora\.targets: Qwen2ForCausalLM has no 'wqkv'"):
        make_engine(lora_spec(targets=["wqkv"]), tmp_path, model_folder)


@pytest.mark.verify
def test_fsdp2_learns_the_same(tmp_path: Path, model_folder: Path) -> None:
    several = {"mini_batches": 2, "kl": {"coefficient": 0.05}}
    fsdp2 = {"kind": "fsdp2", "ranks": 2, "dtype": "float32", "micro_batch_tokens": 60}
    engine = make_engine(lora_spec(algorithm=several), tmp_path, model_folder)
    for iteration in range(1, 5):
        update(engine, random_task(tmp_path, iteration))
    spec = lora_spec(fsdp2, several)
    saved = tmp_path / "saved"
    jobs = [
        Job(spec, model_folder, range(1, 5), save=saved, save_at=2, rejoin_at=3),
        Job(spec, model_folder, (3, 4), restore=(saved, 2)),
    ]
    undisturbed, restored = run_ranks(2, jobs, tmp_path / "ranks")[0]
    wanted = copied(engine)
    assert sorted(undisturbed.weights) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(undisturbed.weights[name], array, atol=1e-6, rtol=0, err_msg=name)
    assert [r.fingerprint for r in restored.receipts] == [r.fingerprint for r in undisturbed.receipts[2:]]
