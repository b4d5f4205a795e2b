"""Networks of diffusers: bits that depend on seed and image alone, folders, and trajectories again in a fresh process."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import yatt_core.workloads.diffusion
from benchmarks.diffusion.__main__ import measure, report_of
from tests.needs import NEEDS_DIFFUSERS
from yatt_core.errors import ConfigurationError
from yatt_core.workloads.diffusion.conditions import make_words
from yatt_core.workloads.diffusion.denoising import DenoisingProcess
from yatt_core.workloads.diffusion.drawing_settings import DrawingSettings, network_settings
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.networks import (
    CONFIG,
    INDEX,
    TRANSFORMER,
    UNET,
    WEIGHTS,
    load_network,
    make_network,
    save_network,
)
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.shapes import PROMPTS, SHAPE, WORDS
from yatt_core.workloads.diffusion.trajectories import SamplingPlan, joined, log_probabilities_of, sample, steps_again
from yatt_core.workloads.diffusion.updates import GrpoSettings, accumulate_gradients

pytestmark = NEEDS_DIFFUSERS
SMALL = {"heads": 2, "head_width": 8, "layers": 1, "word_width": 16}
FEW = {"pretraining": 11, "group": 2, "rows": 8, "held_out": 1, "evaluation_steps": 2, "keep": "latents"}
LEAST = DrawingSettings.model_validate({**SMALL, **FEW})
UNET_SETTINGS = {
    "sample_size": 16,
    "in_channels": 3,
    "out_channels": 3,
    "block_out_channels": [8, 16],
    "layers_per_block": 1,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
    "norm_num_groups": 4,
}
FAMILIES = [
    pytest.param(TRANSFORMER, network_settings(LEAST), FlowProcess(), id="flow"),
    pytest.param(UNET, UNET_SETTINGS, DenoisingProcess(), id="denoising"),
]
SEEDS = [100 + number for number in range(len(PROMPTS))]


def transformer(seed: int = 1) -> nn.Module:
    return make_network(TRANSFORMER, network_settings(LEAST), seed)


def predictor(network: nn.Module) -> Predictor:
    return Predictor(network, make_words(WORDS, 16, 2, seed=0).encode(PROMPTS))


@pytest.mark.parametrize(("kind", "settings", "process"), FAMILIES)
def test_an_images_bits_depend_on_its_seed_alone(
    kind: str, settings: dict[str, object], process: SamplingProcess
) -> None:
    predict = predictor(make_network(kind, settings, 1))
    plan = SamplingPlan(SHAPE, 3, range(2))
    whole = sample(predict, process, SEEDS, plan)
    for rows in (1, 3, 8):
        parts = [slice(first, first + rows) for first in range(0, len(SEEDS), rows)]
        split = joined([sample(predict.rows(part), process, SEEDS[part], plan) for part in parts])
        for one, other in zip(split.latents, whole.latents, strict=True):
            assert torch.equal(one, other), f"in batches of {rows}"
    order = torch.randperm(len(SEEDS), generator=torch.Generator().manual_seed(1))
    others = sample(predict.rows(order), process, [SEEDS[row] for row in order], plan)
    assert torch.equal(others.images, whole.images[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "settings", "process"), FAMILIES)
def test_the_trainers_log_probabilities_are_the_samplers(
    kind: str, settings: dict[str, object], process: SamplingProcess, dtype: torch.dtype
) -> None:
    predict = predictor(nn.Module.to(make_network(kind, settings, 1), dtype))
    drawn = sample(predict, process, SEEDS, SamplingPlan(SHAPE, 3, range(2), dtype))
    assert torch.equal(log_probabilities_of(steps_again(predict, process, drawn), drawn), drawn.log_probabilities)
    if dtype == torch.bfloat16:
        return
    for rows in (1, 5):
        for first in range(0, len(SEEDS), rows):
            part = drawn.rows(slice(first, first + rows))
            steps = steps_again(predict.rows(slice(first, first + rows)), process, part)
            assert (log_probabilities_of(steps, part) - part.log_probabilities).abs().max() <= 1e-6


def test_micro_batches_add_up_to_the_whole_batchs_gradient_with_its_kl_term() -> None:
    policy = predictor(transformer(1))
    reference = predictor(transformer(2))
    drawn = sample(predictor(transformer(3)), FlowProcess(), SEEDS, SamplingPlan(SHAPE, 3, range(2)))
    advantages = torch.linspace(-1, 1, len(SEEDS))
    gradients = []
    figures = []
    for rows in (12, 5):
        settings = GrpoSettings(clip=10.0, kl=0.5, rows=rows)
        found = accumulate_gradients(policy, FlowProcess(), drawn, advantages, settings=settings, reference=reference)
        figures.append(found)
        gradients.append(
            torch.cat([weight.grad.flatten() for weight in policy.network.parameters() if weight.grad is not None])
        )
        policy.network.zero_grad()
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-6) and gradients[0].abs().max() > 1e-4
    assert figures[0].divergence > 0 and figures[0].gap > 0
    steps = steps_again(policy, FlowProcess(), drawn)
    others = steps_again(reference, FlowProcess(), drawn)
    ratios = (log_probabilities_of(steps, drawn) - drawn.log_probabilities).exp()
    divergence = torch.stack([one.divergence(other) for one, other in zip(steps, others, strict=True)]).mean()
    wanted = -(ratios * advantages[:, None]).mean() + 0.5 * divergence
    assert figures[0].loss == pytest.approx(wanted.item(), abs=1e-5)
    with pytest.raises(ValueError, match="reference"):
        accumulate_gradients(policy, FlowProcess(), drawn, advantages, settings=GrpoSettings(kl=0.5))


def test_a_network_depends_on_its_seed_alone_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one = transformer(1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    again = transformer(1).state_dict()
    other = transformer(2).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("kind", "settings", "process"), FAMILIES)
def test_a_folder_is_one_of_diffusers_and_gives_the_same_bits(
    kind: str, settings: dict[str, object], process: SamplingProcess, tmp_path: Path
) -> None:
    import diffusers

    network = make_network(kind, settings, 1)
    save_network(network, tmp_path)
    theirs = getattr(diffusers, kind).from_pretrained(tmp_path).state_dict()
    for name, tensor in load_network(tmp_path, torch.float32).state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name]) and torch.equal(tensor, theirs[name])
        assert tensor.data_ptr() % 64 == 0, "weights are in memory of their own"
    with pytest.raises(ConfigurationError, match="has weights already"):
        save_network(network, tmp_path)


def test_a_sharded_folder_of_diffusers_is_loaded(tmp_path: Path) -> None:
    network = transformer()
    network.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / INDEX).exists() and len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = load_network(tmp_path, torch.bfloat16).state_dict()
    assert all(torch.equal(loaded[name], tensor.bfloat16()) for name, tensor in network.state_dict().items())


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["proj_out.bias"]
    save_file(tensors, folder / WEIGHTS)


def with_another_shape(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "proj_out.bias": torch.zeros(3)}, folder / WEIGHTS)


def with_a_surplus_tensor(folder: Path) -> None:
    save_file({**load_file(folder / WEIGHTS), "adapter": torch.zeros(3)}, folder / WEIGHTS)


def with_a_stale_index(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


def with_an_unknown_class(folder: Path) -> None:
    (folder / CONFIG).write_text(json.dumps({"_class_name": "os.system"}))


def with_an_unknown_setting(folder: Path) -> None:
    (folder / CONFIG).write_text(json.dumps({"_class_name": TRANSFORMER, "layers": 3}))


def with_a_pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "diffusion_pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_tensor, "the weights lack proj_out.bias"),
        (with_another_shape, r"proj_out.bias has the shape \[3\]"),
        (with_a_surplus_tensor, "has no tensor adapter"),
        (with_a_stale_index, "remove the stale one"),
        (with_an_unknown_class, "not a known network"),
        (with_an_unknown_setting, "has no setting 'layers'"),
        (with_a_pickle, "safetensors only"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    save_network(transformer(), tmp_path)
    change(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        load_network(tmp_path, torch.float32)


def test_an_iteration_is_the_same_in_a_fresh_process_from_seeds_and_a_folder(tmp_path: Path) -> None:
    """Runs the benchmark with a minimal model: its fresh process loads weights and draws in another order."""
    found = measure(tmp_path, seed=1, updates=2, settings={**SMALL, **FEW})
    report = report_of({1: found}, 2, 0.0)
    assert report.figures["digests_equal"] == 1.0
    assert report.figures["logprob_gap"] == 0.0 and (report.figures["logprob_gap_any_batch"] or 0.0) <= 1e-6
    assert found["logprob_gap_bfloat16"] == 0.0 and found["logprob_gap_any_batch_bfloat16"] >= 0.0
    assert set(report.figures) == {
        *("reward_start", "reward_end", "reward_control", "reward_ratio_min", "valid_start", "valid_end"),
        *("logprob_gap", "logprob_gap_any_batch", "digests_equal", "seconds"),
    }
    # What is finished is not measured again, and a training goes on from its latest kept state.
    (tmp_path / "ShapeDrawing.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    again = measure(tmp_path, seed=1, updates=2, settings={**SMALL, **FEW})
    assert {name: value for name, value in again.items() if name != "seconds"} == {
        name: value for name, value in found.items() if name != "seconds"
    }
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


def test_no_module_imports_diffusers_when_it_is_loaded() -> None:
    folder = Path(yatt_core.workloads.diffusion.__file__).parent
    for path in folder.glob("*.py"):
        names = [
            name
            for statement in ast.parse(path.read_text()).body
            if isinstance(statement, ast.Import | ast.ImportFrom)
            for name in [getattr(statement, "module", None) or "", *(each.name for each in statement.names)]
        ]
        assert not [name for name in names if name.startswith("diffusers")], path
