"""Adapters of a diffusion network: parity with merged weights, the reference without them, and runs that are killed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.diffusion.test_drawing import SPEC
from tests.workloads.in_process import OwnRun
from tests.workloads.test_contract import engine_of
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec
from yatt_core.workloads.contract import RunFacts, SavedTensors
from yatt_core.workloads.diffusion.adapters import (
    AdapterSettings,
    ReferencePredictor,
    add_adapters,
    is_adapter,
    name_without,
    without_adapters,
)
from yatt_core.workloads.diffusion.conditions import make_words
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.networks import TRANSFORMER, make_network
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.shapes import PROMPTS, WORDS
from yatt_core.workloads.inputs import materialise_workload
from yatt_core.workloads.saved import read_state

pytestmark = NEEDS_DIFFUSERS
SHAPE = {
    "sample_size": 16, "patch_size": 4, "in_channels": 3, "out_channels": 3, "num_layers": 2, "attention_head_dim": 8,
    "num_attention_heads": 2, "joint_attention_dim": 16, "caption_projection_dim": 16, "pooled_projection_dim": 16,
    "pos_embed_max_size": 4,
}  # fmt: skip
ADAPTERS = "workload.settings.adapters={rank: 2, alpha: 8}"
ON = (ADAPTERS, "workload.settings.rate=1e-2")


def made() -> nn.Module:
    torch.set_num_threads(1)
    return make_network(TRANSFORMER, SHAPE, seed=3)


def predicted(network: nn.Module, kind: type[Predictor] = Predictor) -> torch.Tensor:
    words = make_words(WORDS, 16, longest=2, seed=0)
    generator = torch.Generator().manual_seed(5)
    latents = torch.randn(4, 3, 16, 16, generator=generator)
    with torch.no_grad():
        return kind(network, words.encode(list(PROMPTS[:4])))(latents, torch.full((4,), 500.0))


def trained(settings: AdapterSettings) -> nn.Module:
    """Returns a network whose adapters are not those of the beginning."""
    network = made()
    add_adapters(network, settings, seed=1)
    generator = torch.Generator().manual_seed(9)
    for name, weight in network.named_parameters():
        if is_adapter(name):
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return network


def merged(network: nn.Module, share: float) -> nn.Module:
    """Returns a network without adapters whose matrices have their products added."""
    plain = made()
    held = network.state_dict()
    for name, tensor in plain.state_dict().items():
        ends = {end: f"{name.removesuffix('.weight')}.lora_{end}.default.weight" for end in "AB"}
        own = next(each for each in held if name_without(each) == name)
        product = share * held[ends["B"]] @ held[ends["A"]] if ends["A"] in held else 0.0
        tensor.copy_(held[own] + product)
    return plain


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares up to rounding: on some processors a layer beside adapters has other kernels, which add in another order."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def weights_at(own: OwnRun, iteration: int) -> SavedTensors:
    with own.ledger() as ledger:
        (folder,) = [row.folder for row in ledger.records.checkpoints(own.run) if row.iteration == iteration]
    return read_state(own.folder / folder).weights


def test_untrained_adapters_add_nothing_and_the_same_seed_gives_the_same_bits() -> None:
    one = made()
    other = made()
    add_adapters(one, AdapterSettings(), seed=1)
    add_adapters(other, AdapterSettings(), seed=1)
    assert_same(predicted(one), predicted(made()))
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())
    assert {name for name, weight in one.named_parameters() if weight.requires_grad} == {
        name for name in one.state_dict() if is_adapter(name)
    }


@pytest.mark.parametrize(("rank", "alpha"), [(4, 4.0), (4, 32.0), (2, 1.0)])
def test_trained_adapters_are_worth_their_product_times_alpha_by_rank(rank: int, alpha: float) -> None:
    network = trained(AdapterSettings(rank=rank, alpha=alpha))
    found = predicted(network)
    base = predicted(made())
    torch.testing.assert_close(found, predicted(merged(network, alpha / rank)), rtol=1e-5, atol=1e-5)
    assert (found - base).abs().max() > 1e-3
    with without_adapters(network):
        assert_same(predicted(network), base)
    assert_same(predicted(network, ReferencePredictor), base)  # the network without them
    assert torch.equal(predicted(network), found), "they are back"
    assert all(weight.requires_grad == is_adapter(name) for name, weight in network.named_parameters())


def test_a_target_that_the_network_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"adapters.targets: SD3Transformer2DModel has no 'q_proj'"):
        add_adapters(made(), AdapterSettings(targets=("q_proj",)), seed=0)


@pytest.mark.parametrize(
    ("target", "text"),
    [("", "has no ''"), ("attn", "'attn' is the end of transformer_blocks.0.attn, which is Attention and no matrix")],
)
def test_a_target_without_a_matrix_is_refused_in_one_line_before_inputs_are_built(target: str, text: str) -> None:
    settings = {"adapters": {"targets": [target]}}
    with pytest.raises(
        ConfigurationError,
        match=rf"^workload.settings.adapters.targets: [^\n]*{text}[^\n]*; expected ends of names[^\n]*$",
    ):
        ShapeDrawing(RunFacts(seed=0, settings=settings, iterations=1)).check_inputs()


def test_what_shapes_the_network_is_not_tunable() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^workload.tunable.layers: the inputs depend on it, which cannot change; expected it in workload",
    ):
        ShapeDrawing(RunFacts(seed=0, settings={"layers": 2}, iterations=1, tunable=frozenset({"layers", "rate"})))


def test_a_run_of_adapters_that_was_killed_on_another_number_of_ranks_gives_the_same_bits(tmp_path: Path) -> None:
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC, *ON)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC, *ON, "trainer.engine.ranks=2")
    for number, place in enumerate(("after prepare:1", "after learn:2", "after checkpoint:2", "commit:3")):
        assert struck.drive(place, cold=number % 2 == 1) is None
    struck.drive(cold=True)
    assert struck.results().weights_digest == undisturbed.results().weights_digest is not None
    assert struck.results().metrics_digest == undisturbed.results().metrics_digest
    with struck.ledger() as ledger:
        divergences = [value for _, value in ledger.metrics.history(struck.run, "divergence")]
    assert divergences[0] == 0.0 < divergences[1], "the reference stays where it was"
    before, after = (weights_at(undisturbed, iteration) for iteration in (0, 3))
    for name in before.shapes:
        assert torch.equal(before.whole(name), after.whole(name)) != is_adapter(name), name


def test_a_stage_of_adapters_begins_with_the_network_of_another_run(tmp_path: Path) -> None:
    first = OwnRun.of(tmp_path / "first", SPEC)
    first.drive()
    with first.ledger() as ledger:
        folder = first.folder / ledger.records.checkpoints(first.run)[0].folder
    start = f"workload.start.path={folder}"
    wider = load_spec(SPEC, [start, "workload.settings.heads=1"])
    materialise_workload(wider, tmp_path / "wider")
    with pytest.raises(
        ConfigurationError, match=r"^workload.start.path: .* has the shape .*workload.settings .*: guidance, head_w"
    ):
        engine_of(wider, tmp_path / "wider").initialise()
    stage = OwnRun.of(tmp_path / "stage", SPEC, *ON, start)
    assert stage.drive("after learn:2") is None
    stage.drive(cold=True)
    with stage.ledger() as ledger:
        assert ledger.metrics.history(stage.run, "divergence")[0] == (1, 0.0)
        folder = stage.folder / ledger.records.checkpoints(stage.run)[0].folder
    spec = load_spec(SPEC, [f"workload.start.path={folder}"])
    materialise_workload(spec, tmp_path / "next")
    with pytest.raises(ConfigurationError, match=r"^workload.start.path: .* the network to begin with has adapters"):
        engine_of(spec, tmp_path / "next").initialise()
