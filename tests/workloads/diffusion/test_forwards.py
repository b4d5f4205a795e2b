"""Flux- and Qwen-Image-like networks: tokens as pipelines pack them, exact log-probabilities, what is refused, runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.diffusion.test_drawing import SPEC
from tests.workloads.in_process import OwnRun
from yatt_core.errors import ConfigurationError
from yatt_core.workloads.contract import RunFacts
from yatt_core.workloads.diffusion.adapters import AdapterSettings, ReferencePredictor, add_adapters, is_adapter
from yatt_core.workloads.diffusion.conditions import Conditions, make_words
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.drawing_settings import NETWORKS, DrawingSettings, network_settings
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.forwards import FORWARDS, packed, positions, unpacked
from yatt_core.workloads.diffusion.networks import (
    CONFIG,
    FLUX,
    QWEN_IMAGE,
    TRANSFORMER,
    kind_of,
    load_network,
    make_network,
    save_network,
)
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.shapes import SHAPE, WORDS
from yatt_core.workloads.diffusion.trajectories import SamplingPlan, joined, log_probabilities_of, sample, steps_again
from yatt_core.workloads.diffusion.updates import GrpoSettings, accumulate_gradients

pytestmark = NEEDS_DIFFUSERS
SMALL = {"heads": 2, "head_width": 8, "layers": 1, "word_width": 16, "pretraining": 11, "group": 2, "rows": 8}
FLUX_SMALL = DrawingSettings.model_validate({**SMALL, "network": "flux"})
GUIDED = DrawingSettings.model_validate({**SMALL, "network": "flux", "guidance": 3.5})
QWEN_SMALL = DrawingSettings.model_validate({**SMALL, "network": "qwen_image"})
FAMILIES = [
    pytest.param(FLUX_SMALL, id="flux"),
    pytest.param(GUIDED, id="guided"),
    pytest.param(QWEN_SMALL, id="qwen"),
]
PROMPTS = ["red circle", "blue", "green square", "triangle"] * 3
"""Of two lengths, so that some have words that a mask hides."""
SEEDS = [100 + number for number in range(len(PROMPTS))]
LATENTS = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(7))
TIMES = torch.tensor([1000.0, 750.0, 500.0, 250.0])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def made(settings: DrawingSettings, **others: Any) -> nn.Module:
    return make_network(NETWORKS[settings.network], network_settings(settings) | others, 1)


def asked(settings: DrawingSettings, prompts: list[str] = PROMPTS) -> Conditions:
    return make_words(WORDS, 16, 2, seed=0).encode(prompts).guided(settings.guidance)


@torch.no_grad()
def predicted(network: nn.Module, conditions: Conditions, latents: torch.Tensor = LATENTS) -> torch.Tensor:
    return FORWARDS[kind_of(network)](network, latents, TIMES, conditions)


@pytest.mark.parametrize("settings", FAMILIES)
def test_an_images_bits_depend_on_its_seed_and_prompt_alone(settings: DrawingSettings) -> None:
    predict = Predictor(made(settings), asked(settings))
    plan = SamplingPlan(SHAPE, 3, range(2))
    whole = sample(predict, FlowProcess(), SEEDS, plan)
    assert whole.images.shape == (len(SEEDS), *SHAPE)
    for rows in (1, 3, 8):
        parts = [slice(first, first + rows) for first in range(0, len(SEEDS), rows)]
        split = joined([sample(predict.rows(part), FlowProcess(), SEEDS[part], plan) for part in parts])
        for one, other in zip(split.latents, whole.latents, strict=True):
            assert torch.equal(one, other), f"in batches of {rows}"
    # Rows of prompts of full length alone, in which a mask would hide nothing.
    full = torch.arange(0, len(SEEDS), 2)
    others = sample(predict.rows(full), FlowProcess(), [SEEDS[row] for row in full], plan)
    assert torch.equal(others.images, whole.images[full])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("settings", FAMILIES)
def test_the_trainers_log_probabilities_are_the_samplers(settings: DrawingSettings, dtype: torch.dtype) -> None:
    predict = Predictor(nn.Module.to(made(settings), dtype), asked(settings))
    process = FlowProcess()
    drawn = sample(predict, process, SEEDS, SamplingPlan(SHAPE, 3, range(2), dtype))
    assert torch.equal(log_probabilities_of(steps_again(predict, process, drawn), drawn), drawn.log_probabilities)
    if dtype == torch.bfloat16:
        return
    for rows in (1, 5):
        for first in range(0, len(SEEDS), rows):
            part = drawn.rows(slice(first, first + rows))
            steps = steps_again(predict.rows(slice(first, first + rows)), process, part)
            assert (log_probabilities_of(steps, part) - part.log_probabilities).abs().max() <= 1e-6


@pytest.mark.parametrize("side", [1, 2, 4])
def test_packed_images_come_back(side: int) -> None:
    assert packed(LATENTS, side).shape == (4, (16 // side) ** 2, 3 * side * side)
    assert torch.equal(unpacked(packed(LATENTS, side), side, LATENTS.shape), LATENTS)
    wide = torch.randn(2, 5, 8, 16)
    assert torch.equal(unpacked(packed(wide, side), side, wide.shape), wide)


def test_tokens_and_positions_are_those_of_the_pipelines() -> None:
    from diffusers import FluxPipeline, QwenImagePipeline

    latents = torch.randn(2, 16, 8, 12)
    theirs = FluxPipeline._pack_latents(latents, 2, 16, 8, 12)
    assert torch.equal(packed(latents, 2), theirs)
    assert torch.equal(QwenImagePipeline._pack_latents(latents, 2, 16, 8, 12), theirs)
    assert torch.equal(unpacked(theirs, 2, latents.shape), FluxPipeline._unpack_latents(theirs, 64, 96, 8))
    ids = FluxPipeline._prepare_latent_image_ids(2, 4, 6, torch.device("cpu"), torch.float32)
    assert torch.equal(positions(4, 6, torch.device("cpu")), ids)


@pytest.mark.parametrize("settings", FAMILIES)
def test_a_prediction_is_that_of_a_call_as_the_pipelines_make_it(settings: DrawingSettings) -> None:
    network = made(settings)
    conditions = asked(settings, PROMPTS[:4])
    tokens = packed(LATENTS, 4)
    shared = {"hidden_states": tokens, "encoder_hidden_states": conditions.words, "timestep": TIMES / 1000}
    if settings.network == "qwen_image":
        others = {"encoder_hidden_states_mask": conditions.mask, "img_shapes": [[(1, 4, 4)]] * 4}
    else:
        ids = positions(4, 4, torch.device("cpu"))
        others = {"pooled_projections": conditions.pooled, "img_ids": ids, "txt_ids": torch.zeros(2, 3)}
        others["guidance"] = None if settings.guidance is None else torch.full((4,), 3.5)
    with torch.no_grad():
        wanted = network(**shared, **others, return_dict=False)[0]
    assert torch.equal(packed(predicted(network, conditions), 4), wanted)


def test_what_a_mask_hides_changes_nothing() -> None:
    network = made(QWEN_SMALL)
    conditions = asked(QWEN_SMALL, PROMPTS[:4])
    assert conditions.mask.tolist() == [[True, True], [True, False]] * 2
    words = conditions.words.clone()
    words[1, 1] = 9.0
    found = predicted(network, conditions)
    assert torch.equal(predicted(network, Conditions(words, conditions.pooled, conditions.mask)), found)
    shown = torch.ones_like(conditions.mask)
    assert not torch.equal(predicted(network, Conditions(words, conditions.pooled, shown))[1], found[1])


def test_a_network_is_told_the_guidance_that_it_has_an_embedding_for() -> None:
    guided = made(GUIDED)
    conditions = asked(FLUX_SMALL, PROMPTS[:4])
    found = [predicted(guided, conditions.guided(strength)) for strength in (1.0, 3.5)]
    assert not torch.equal(found[0], found[1])
    with pytest.raises(ConfigurationError, match="FluxTransformer2DModel: expected conditions with a guidance"):
        predicted(guided, conditions)
    with pytest.raises(ConfigurationError, match="expected conditions with no guidance"):
        predicted(made(FLUX_SMALL), conditions.guided(1.0))


@pytest.mark.parametrize("settings", FAMILIES)
def test_a_folder_is_one_of_diffusers_and_gives_the_same_bits(settings: DrawingSettings, tmp_path: Path) -> None:
    import diffusers

    network = made(settings)
    save_network(network, tmp_path)
    theirs = getattr(diffusers, kind_of(network)).from_pretrained(tmp_path)
    loaded = load_network(tmp_path, torch.float32)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name]) and torch.equal(tensor, theirs.state_dict()[name])
    conditions = asked(settings, PROMPTS[:4])
    assert torch.equal(predicted(loaded, conditions), predicted(network, conditions))
    assert torch.equal(predicted(theirs.eval(), conditions), predicted(network, conditions))


def test_a_setting_of_published_folders_that_the_class_has_dropped_is_left_out(tmp_path: Path) -> None:
    save_network(made(QWEN_SMALL), tmp_path)
    stated = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(stated | {"pooled_projection_dim": 768}))
    assert kind_of(load_network(tmp_path, torch.float32)) == QWEN_IMAGE


@pytest.mark.parametrize("name", ["guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope"])
def test_networks_that_need_more_than_a_prompt_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{QWEN_IMAGE}: {name}: expected false"):
        made(QWEN_SMALL, **{name: True})
    save_network(made(QWEN_SMALL), tmp_path)
    stated = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(stated | {name: True}))
    with pytest.raises(ConfigurationError, match=f"{QWEN_IMAGE}: {name}: expected false"):
        load_network(tmp_path, torch.float32)


@pytest.mark.parametrize(
    ("settings", "others", "latents", "message"),
    [
        (FLUX_SMALL, {"in_channels": 40}, LATENTS, r"in_channels: expected 3 x a square number"),
        (FLUX_SMALL, {"out_channels": 3}, LATENTS, r"predicts 3 numbers for a token of 48"),
        (QWEN_SMALL, {"patch_size": 2}, LATENTS, r"predicts 12 numbers for a token of 48"),
        (QWEN_SMALL, {}, LATENTS[..., :14], r"squares of 4 x 4, which do not divide latents of 16 x 14"),
    ],
)
def test_latents_that_a_network_has_no_tokens_for_are_refused(
    settings: DrawingSettings, others: dict[str, int], latents: torch.Tensor, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        predicted(made(settings, **others), asked(settings, PROMPTS[:4]), latents)


def test_a_class_derived_from_a_known_one_is_known_and_another_is_not() -> None:
    network = made(FLUX_SMALL)
    network.__class__ = type("Derived", (type(network),), {})
    assert kind_of(network) == FLUX
    with pytest.raises(ConfigurationError, match=f"Linear is not a known network; known: {TRANSFORMER}, {FLUX}"):
        kind_of(nn.Linear(1, 1))


@pytest.mark.parametrize("settings", FAMILIES)
def test_adapters_are_on_every_target_of_a_family(settings: DrawingSettings) -> None:
    network = made(settings)
    conditions = asked(settings, PROMPTS[:4])
    before = predicted(network, conditions)
    add_adapters(network, AdapterSettings(rank=2), seed=1)
    adapted = {name.partition(".lora_")[0] for name in network.state_dict() if is_adapter(name)}
    double = {f"transformer_blocks.0.attn.{target}" for target in ("to_q", "to_k", "to_v", "to_out.0")}
    single = {f"single_transformer_blocks.0.attn.{target}" for target in ("to_q", "to_k", "to_v")}
    assert adapted == (double if settings.network == "qwen_image" else double | single)
    assert torch.equal(predicted(network, conditions), before), "untrained ones add nothing"
    for name, weight in network.named_parameters():
        if is_adapter(name):
            weight.data.fill_(0.1)
    assert not torch.equal(predicted(network, conditions), before)
    reference = ReferencePredictor(network, conditions)
    assert torch.equal(reference(LATENTS, TIMES), before)


@pytest.mark.parametrize("settings", FAMILIES)
def test_the_gradient_of_an_update_is_that_of_the_published_objective(settings: DrawingSettings) -> None:
    """Along a random direction of all weights, against differences of Flow-GRPO's objective in float64."""
    network = made(settings).double()
    predict = Predictor(network, asked(settings))
    process = FlowProcess()
    drawn = sample(predict, process, SEEDS, SamplingPlan(SHAPE, 3, range(2), torch.float64))
    advantages = torch.linspace(-1, 1, len(SEEDS), dtype=torch.float64)
    found = accumulate_gradients(predict, process, drawn, advantages, settings=GrpoSettings(clip=10.0, rows=5))
    assert found.loss == pytest.approx(-advantages.mean().item(), abs=1e-6), "all ratios are 1"
    generator = torch.Generator().manual_seed(3)
    # What the last block of Qwen-Image makes of the words is used by nobody, and has no gradient.
    slopes = [(weight, weight.grad) for weight in network.parameters() if weight.grad is not None]
    directions = [(weight, torch.randn(weight.shape, generator=generator).double()) for weight, _ in slopes]
    slope = sum((grad * each).sum().item() for (_, grad), (_, each) in zip(slopes, directions, strict=True))

    @torch.no_grad()
    def objective(length: float) -> float:
        for weight, each in directions:
            weight.add_(each, alpha=length)
        ratios = (log_probabilities_of(steps_again(predict, process, drawn), drawn) - drawn.log_probabilities).exp()
        for weight, each in directions:
            weight.sub_(each, alpha=length)
        return -(ratios * advantages[:, None]).mean().item()

    difference = (objective(1e-4) - objective(-1e-4)) / 2e-4
    # Rotary positions are computed in float32 whatever the dtype, which bounds what a difference can show.
    assert slope == pytest.approx(difference, rel=2e-3) and abs(slope) > 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": "flux", "head_width": 5}, "head_width: expected an even number of at least 6 with flux"),
        ({"network": "qwen_image", "head_width": 4}, "at least 6 with qwen_image"),
        ({"network": "qwen_image", "guidance": 2.0}, "guidance: qwen_image has no embedding for it"),
        ({"guidance": 2.0}, "guidance: sd3 has no embedding for it"),
    ],
)
def test_settings_that_do_not_suit_a_family_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrawingSettings.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"heads": 0}, ["workload.settings.heads: Input should be greater than 0 (given: 0)"]),
        (
            {"network": "dit"},
            ["workload.settings.network: Input should be 'sd3', 'flux', 'qwen_image' or 'unet' (given: 'dit')"],
        ),
        ({"clip": -4}, ["workload.tunable.clip: Input should be greater than 0 (given: -4)"]),
        ({"reward": {"kind": "clap"}}, ["workload.settings.reward.kind: unknown kind 'clap'; did you mean 'clip'?"]),
        ({"head": 2}, ["workload.settings.head: unknown key; did you mean 'heads'?"]),
        ({"window": 9}, ["workload.settings.window: 9 stochastic steps do not fit into steps: 6"]),
        (
            {"guidance": 2.0},
            ["workload.settings.guidance: sd3 has no embedding for it; expected null, or network: flux"],
        ),
        (
            {"heads": 2, "head_width": 7},
            [
                "workload.settings.head_width: expected a multiple of 4 from heads x head_width with sd3, whose positions have "
                "four equal parts (given: 2 x 7)"
            ],
        ),
        (
            {"heads": 0, "adapters": {"rank": 0}},
            [
                "workload.settings.heads: Input should be greater than 0 (given: 0)",
                "workload.settings.adapters.rank: Input should be greater than 0 (given: 0)",
            ],
        ),
    ],
)
def test_each_mistake_in_the_settings_is_a_line_with_its_key(settings: dict[str, Any], lines: list[str]) -> None:
    facts = RunFacts(seed=0, settings=settings, iterations=1, tunable=frozenset({"clip", "rate"}))
    with pytest.raises(ConfigurationError) as raised:
        ShapeDrawing(facts)
    assert str(raised.value).splitlines() == lines


@pytest.mark.parametrize(
    "network", ["{network: flux, guidance: 2.0}", pytest.param("{network: qwen_image}", marks=pytest.mark.verify)]
)
def test_a_run_of_a_family_killed_in_its_phases_gives_the_same_bits(network: str, tmp_path: Path) -> None:
    own = [f"workload.settings.{each.strip()}".replace(": ", "=") for each in network.strip("{}").split(",")]
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC, *own)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC, *own, "trainer.engine.ranks=2")
    for number, place in enumerate(("after prepare:1", "after learn:2", "after checkpoint:2")):
        assert struck.drive(place, cold=number % 2 == 1) is None
    struck.drive(cold=True)
    assert struck.results().weights_digest == undisturbed.results().weights_digest is not None
    assert struck.results().metrics_digest == undisturbed.results().metrics_digest
