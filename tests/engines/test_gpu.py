"""The torch engines on a pretend GPU (`tests.pretend_gpu`): tensors stay apart from the host's, numbers match."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.held_bytes import held_bytes
from tests.engines.pictures import make_vision_folder
from tests.engines.rollout.cases import build_model, prompts_of, request_of, rows_of, torch_case
from tests.engines.train.support import make_engine, make_model_folder, make_spec, random_task, update
from tests.engines.train.test_critic import ppo_spec
from tests.engines.train.test_images import images_task
from tests.judges.parts import verdicts
from tests.judges.test_reward_model import ITEMS, make_folder, part
from tests.pretend_gpu import GPU, pretended
from yatt_core.digests import weights_digest
from yatt_core.engines.dense.attention import LONGEST_KEPT, attend_masked
from yatt_core.engines.device import MemoryReading, own_device, repeat_bits, require_room
from yatt_core.engines.offload import HeldMemory, Offloaded
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.rollout.torch.rows import STEPS_ON_GPU
from yatt_core.engines.train.steps.objective import TokenInputs, objective
from yatt_core.errors import InfrastructureError
from yatt_core.judges.registry import build_judge
from yatt_core.protocols.generation import GenerateResult
from yatt_core.spec.run import RunSpec

GIB = 1 << 30


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("policy"))


def answers(folder: Path, name: str, sleeps: bool = False, **options: Any) -> GenerateResult:
    """Returns an engine's answers after an update and, if `sleeps`, a sleep; prompts wait and responses end early."""
    case = torch_case(folder, name=name)
    engine = case.engine
    engine.update_weights(case.weights(1), 0)
    request = request_of(prompts_of([3, 9, 70, 9]), 3, **options)
    if sleeps:
        assert isinstance(engine, TorchRolloutEngine)
        engine.generate(request)
        weights = [tensor.untyped_storage() for tensor in engine._tensors.values()]
        engine.sleep()
        assert not any(memory.nbytes() for memory in weights) and not held_bytes(engine._runner)
        assert engine.capabilities["batch_invariant"] is False
    return engine.generate(request)


@pytest.mark.parametrize(
    ("name", "options"),
    [("torch-general", {}), ("torch", {"top_p": 0.9}), ("torch-waiting", {}), ("torch", {"greedy": True})],
)
def test_responses_match_the_cpu(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    build_model(tmp_path, "tied")
    expected = answers(tmp_path, name, **options)
    with pretended():
        found = answers(tmp_path, name, sleeps=True, **options)
    assert [row[0] for row in rows_of(found)] == [row[0] for row in rows_of(expected)]
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "options",
    [{}, {"repetition_penalty": 1.3, "min_new_tokens": 3}, {"greedy": True}],
    ids=["sampled", "shaped", "greedy"],
)
def test_the_host_does_not_wait_for_every_token(tmp_path: Path, options: dict[str, Any]) -> None:
    build_model(tmp_path, "tied")
    tokens = 2 * STEPS_ON_GPU + 3
    request = request_of(prompts_of([9, 9]), 2, max_new_tokens=tokens, stop_tokens=(), **options)
    case = torch_case(tmp_path)
    case.engine.update_weights(case.weights(1), 0)
    expected = case.engine.generate(request)
    with pretended() as gpu:
        case = torch_case(tmp_path)
        case.engine.update_weights(case.weights(1), 0)
        before = gpu.transfers
        found = case.engine.generate(request)
        # One for the prompts, with the first token, then one for each full or partial series of steps.
        assert gpu.transfers - before == 1 + 3
    assert found.tokens.tolist() == expected.tokens.tolist()


@dataclass(frozen=True)
class Course:
    """The result of three updates: the metrics of each, and the weights after them."""

    metrics: list[dict[str, float]]
    weights: dict[str, Any]


def course(spec: RunSpec, folder: Path, model: Path, images: bool = False) -> Course:
    """Runs two updates with an offload in between, and a third on a trainer restored from their checkpoint."""
    tasks = [images_task(folder, k) if images else random_task(folder, k) for k in (1, 2, 3)]
    first = make_engine(spec, folder, model)
    second = make_engine(spec, folder, model)
    receipts = [update(first, tasks[0])]
    first.offload()
    receipts.append(update(first, tasks[1]))
    write = first.freeze_state()
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    write(checkpoint)
    second.restore(checkpoint, 2)
    receipts.append(update(second, tasks[2]))
    weights = {name: array.copy() for name, array in second.stream_weights()}
    assert weights_digest(weights) == receipts[-1].fingerprint["weights_digest"]
    return Course([dict(receipt.metrics) for receipt in receipts], weights)


def assert_same(found: Course, expected: Course) -> None:
    """Asserts equality up to rounding, which depends on the alignment of tensors in memory."""
    assert found.metrics == [pytest.approx(metrics, rel=1e-3, abs=1e-4) for metrics in expected.metrics]
    assert found.weights.keys() == expected.weights.keys()
    for name, array in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], array, atol=2e-5, rtol=0)


ENGINE = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 60}
SPECS: dict[str, RunSpec] = {
    "fast, reference": make_spec(
        algorithm={"kl": {"where": "loss"}, "mini_batches": 2, "entropy": {"kind": "bonus", "coefficient": 0.01}},
        trainer={"engine": ENGINE},
    ),
    "fast, bfloat16": make_spec(exact=False, trainer={"engine": {**ENGINE, "dtype": "bfloat16"}}),
    "general, packed": make_spec(trainer={"engine": {**ENGINE, "kernels": "general", "packed": True}}),
    "critic": ppo_spec(),
    "adapters": make_spec(trainer={"engine": ENGINE, "lora": {"rank": 2, "targets": ["q_proj", "up_proj"]}}),
}
QUICK = ("fast, reference", "general, packed", "adapters")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.verify) for name in SPECS],
)
def test_updates_match_the_cpu(tmp_path: Path, policy: Path, name: str) -> None:
    expected = course(SPECS[name], tmp_path / "cores", policy)
    with pretended() as gpu:
        assert_same(course(SPECS[name], tmp_path / "gpu", policy), expected)
        assert torch.are_deterministic_algorithms_enabled() == SPECS[name].is_exact
    assert gpu.transfers, "the weights were on the GPU"


@pytest.mark.verify
def test_a_trainer_keeps_its_images_on_its_gpu(tmp_path: Path) -> None:
    model = make_vision_folder(tmp_path / "model")
    spec = make_spec(trainer={"engine": ENGINE})
    expected = course(spec, tmp_path / "cores", model, images=True)
    with pretended():
        assert_same(course(spec, tmp_path / "gpu", model, images=True), expected)


def test_a_reward_model_moves_to_the_host_while_others_work(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "reward")

    def scores(judge: Any) -> list[float]:
        return [verdict.judgements[0].score for verdict in verdicts(judge, *ITEMS).values()]

    expected = scores(build_judge(part(folder), str(folder)))
    with pretended():
        judge = build_judge(part(folder), str(folder))
        judge.sleep()
        assert scores(judge) == pytest.approx(expected, abs=1e-6)
        assert judge.capabilities == {"deterministic": False, "batch_invariant": False}


def test_the_sums_of_a_loss_leave_the_gpu_in_one_transfer() -> None:
    names = ("advantages", "weights", "mean_weights", "sampler", "old", "reference")
    columns = {name: torch.linspace(-1.0, 1.0, 5) for name in names}
    spec = SPECS["fast, reference"].algorithm
    expected = objective(spec, torch.zeros(5), torch.ones(5), TokenInputs(**columns))
    with pretended() as gpu:
        inputs = TokenInputs(**{name: column.to(GPU) for name, column in columns.items()})
        loss, sums = objective(spec, torch.zeros(5, device=GPU), torch.ones(5, device=GPU), inputs)
        assert gpu.transfers == 1
    assert (loss.item(), sums) == (expected[0].item(), expected[1])


def test_attention_over_long_sequences_matches_the_cpu() -> None:
    noise = torch.Generator().manual_seed(0)
    sizes = [(2, 5, 4, 8), (2, LONGEST_KEPT + 1, 2, 8), (2, LONGEST_KEPT + 1, 2, 8)]
    states = [torch.randn(size, generator=noise) for size in sizes]
    mask = torch.zeros(2, 1, 5, LONGEST_KEPT + 1)
    expected = attend_masked(*states, mask)
    with pretended():
        found = attend_masked(*(each.to(GPU) for each in states), mask.to(GPU)).cpu()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_gpu_sums_in_the_same_order_each_time() -> None:
    repeat_bits(own_device())
    assert not torch.are_deterministic_algorithms_enabled(), "a CPU needs no setting for it"
    with pretended():
        repeat_bits(GPU)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_full_gpu_is_named_before_anything_is_moved_there(tmp_path: Path, policy: Path) -> None:
    reading = MemoryReading("H200", 3 * GIB, 140 * GIB)
    require_room("the trainer", 3 * GIB, reading)
    with pytest.raises(InfrastructureError, match=r"the trainer .*3\.5 GiB .*H200.*\b3\.0 .*140\.0 GiB"):
        require_room("the trainer", 7 * GIB // 2, reading)
    weights = sum(path.stat().st_size for path in policy.glob("*.safetensors"))
    with pretended(free=3 * weights), pytest.raises(InfrastructureError, match=r"the trainer .* GiB"):
        make_engine(make_spec(), tmp_path, policy)
    with pretended(free=weights // 2), pytest.raises(InfrastructureError, match=r"the rollout engine .* GiB"):
        TorchRolloutEngine(str(policy), "float32", 8, 8, tmp_path)
    with pretended(free=weights):
        TorchRolloutEngine(str(policy), "float32", 8, 8, tmp_path)


def test_the_pretend_gpu_refuses_what_a_gpu_would() -> None:
    with pretended() as gpu:
        there = torch.ones(2, device=GPU, requires_grad=True)
        here = torch.ones(2)
        assert there.device == GPU and (there * 2).device == GPU and here.device.type == "cpu"
        with pytest.raises(RuntimeError, match=r"aten\.mul.* on cuda:0 and on the host"):
            _ = there * here
        with pytest.raises(RuntimeError, match=r"aten\.index"):
            _ = there[torch.tensor([0])]
        with pytest.raises(TypeError, match="numpy"):
            there.detach().numpy()
        (there * here.to(GPU)).sum().backward()
        assert there.grad is not None and there.grad.device == GPU
        assert there.detach().cpu().numpy().tolist() == [1.0, 1.0] and gpu.transfers == 1
        memory = Offloaded(HeldMemory((there,)))
        assert not there.untyped_storage().nbytes()
        memory.bring_back()
        assert there.tolist() == [1.0, 1.0] and there.device == GPU
        optimizer = torch.optim.AdamW([there], fused=True)
        optimizer.step()
        optimizer.state[there]["step"] = torch.tensor(1.0)
        with pytest.raises(RuntimeError, match="fused_adamw"):
            optimizer.step()
