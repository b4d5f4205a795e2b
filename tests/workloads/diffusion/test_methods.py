"""Runs by each method: killed in their phases they end with the same bits; what does not go together is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.workloads.alone import begun, kept
from flows.reports.audit import verify_run
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.diffusion.brightness import BrightDrawing
from tests.workloads.in_process import OwnRun
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.spec import load_spec
from yatt_core.workloads.contract import Draw, RunFacts, Workload
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.drawing_settings import DrawingSettings

pytestmark = NEEDS_DIFFUSERS
SPEC = Path(__file__).parent / "methods.yaml"
DRAW = Draw(seed=5, iteration=1, number=0)
UNET = "method=ddpo network=unet patch=2"
FOLLOWED = "method=nft old_rise=0.2"
"""Images are sampled from weights that follow the trained ones at some distance."""
PLACES = ("after prepare:1", "after learn:2", "after checkpoint:2")
ALL = ("prepare:1", "after prepare:1", "learn:2", "after learn:2", "checkpoint:2", "commit:3", "after learn:3")
METRICS = {
    "nft": {"loss", "reward", "grad_norm"},
    "dpo": {"loss", "reward", "grad_norm", "pairs"},
    "ddpo": {"loss", "reward", "grad_norm", "log_probability_gap"},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def overrides(settings: str) -> list[str]:
    return [f"workload.settings.{each}" for each in settings.split()]


def digests(run: OwnRun) -> tuple[str, ...]:
    results = run.results()
    found = (results.weights_digest, results.experience_digest, results.metrics_digest)
    assert all(found)
    return tuple(str(each) for each in found)


def small(**own: Any) -> dict[str, Any]:
    return {**load_spec(SPEC).workload.settings, **own}


def started(folder: Path, **own: Any) -> ShapeDrawing:
    workload = begun(BrightDrawing, folder / "inputs", seed=5, iterations=3, **small(**own))
    assert isinstance(workload, ShapeDrawing)
    return workload


def tensors(workload: Workload) -> dict[str, torch.Tensor]:
    saved = kept(workload.state())
    return {name: each.detach() for name, each in (*saved.weights.tensors.items(), *saved.others.tensors.items())}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("settings", "others", "places"),
    [
        pytest.param(FOLLOWED, "trainer.engine.ranks=2", PLACES, id="nft on two ranks"),
        pytest.param("method=dpo", "", PLACES, id="dpo"),
        pytest.param(UNET, "", PLACES[1:2], id="ddpo", marks=pytest.mark.verify),
        pytest.param(FOLLOWED, "", ALL, id="nft everywhere", marks=pytest.mark.verify),
        pytest.param("method=dpo", "trainer.engine.ranks=2", ALL, id="dpo everywhere", marks=pytest.mark.verify),
        pytest.param(UNET, "trainer.engine.ranks=2", ALL, id="ddpo everywhere", marks=pytest.mark.verify),
        pytest.param("method=dpo adapters.rank=2", "", ALL, id="dpo with adapters", marks=pytest.mark.verify),
    ],
)
def test_a_run_of_a_method_killed_in_its_phases_gives_the_same_bits(
    settings: str, others: str, places: tuple[str, ...], tmp_path: Path
) -> None:
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC, *overrides(settings))
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC, *overrides(settings), *others.split())
    reached = [place for number, place in enumerate(places) if struck.drive(place, cold=number % 2 == 1) is None]
    struck.drive(cold=True)
    assert reached == list(places)
    # What is sealed is divided over the ranks.
    compared = slice(None) if not others else slice(None, None, 2)
    assert digests(struck)[compared] == digests(undisturbed)[compared]
    method = settings.split()[0].removeprefix("method=")
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
        history = {name: ledger.metrics.history(struck.run, name) for name in METRICS[method]}
        divergences = ledger.metrics.history(struck.run, "divergence")
    assert report.sound, report.disagreement
    assert all(len(found) == 3 for found in history.values()) and not divergences
    assert all(value > 0 for _, value in history["grad_norm"])
    if method == "ddpo":
        assert [value for _, value in history["log_probability_gap"]] == [0.0] * 3
    if method == "dpo":
        assert [value for _, value in history["pairs"]] == [12.0] * 3


@pytest.mark.parametrize(
    "settings",
    [FOLLOWED, pytest.param("method=dpo", marks=pytest.mark.verify), pytest.param(UNET, marks=pytest.mark.verify)],
)
def test_samplers_draw_what_the_rank_would(settings: str, tmp_path: Path) -> None:
    """Of nft, from the weights that follow the trained ones; killed once on the way."""
    alone = OwnRun.of(tmp_path / "alone", SPEC, *overrides(settings))
    alone.drive()
    apart = OwnRun.of(
        tmp_path / "apart", SPEC, *overrides(settings), "workload.sampled_by=rollout", "rollout.engine.instances=2"
    )
    assert apart.drive("after learn:2") is None
    apart.drive(cold=True)
    assert digests(apart) == digests(alone)


@pytest.mark.parametrize("settings", ["method=nft", "method=dpo"])
def test_latents_that_are_kept_give_the_update_of_those_that_are_sampled_again(settings: str, tmp_path: Path) -> None:
    own = dict(each.split("=") for each in settings.split())
    found = []
    for keep in ("seeds", "latents"):
        workload = started(tmp_path, **own, keep=keep)
        columns = workload.sample(workload.draw(DRAW), DRAW)
        assert ("latents" in columns) == ("image" not in columns), "images that are sampled again are compared"
        workload.update(columns, DRAW)
        found.append(tensors(workload))
    assert same(*found)


def test_images_that_are_not_those_that_were_sealed_are_an_error(tmp_path: Path) -> None:
    workload = started(tmp_path, method="nft")
    columns = dict(workload.sample(workload.draw(DRAW), DRAW))
    columns["image"] = columns["image"] + 1
    with pytest.raises(DataError, match="images that were sampled again from their seeds have other bits"):
        workload.update(columns, DRAW)


def test_nft_samples_from_weights_that_follow_the_trained_ones(tmp_path: Path) -> None:
    """old = share x old + (1 - share) x new, where the share rises with the iterations up to a limit (arXiv 2509.16117)."""
    workload = started(tmp_path, method="nft", old_rise=0.2, old_most=0.3)
    name = "proj_out.bias"
    old = tensors(workload)[f"old.{name}"]
    assert torch.equal(old, tensors(workload)[name])
    for iteration, share in ((1, 0.2), (2, 0.3)):
        draw = Draw(seed=5, iteration=iteration, number=iteration - 1)
        workload.update(workload.sample(workload.draw(draw), draw), draw)
        new = tensors(workload)[name]
        old = share * old + (1 - share) * new
        assert torch.allclose(tensors(workload)[f"old.{name}"], old, rtol=0.0, atol=1e-6)
        assert not torch.equal(old, new)
        sampling = workload.sampling_weights()[name].detach()
        assert torch.equal(sampling, tensors(workload)[f"old.{name}"])
    plain = started(tmp_path, method="nft", old_most=0.0)
    assert not [each for each in tensors(plain) if each.startswith("old.")]


def test_without_a_pair_nothing_is_learnt(tmp_path: Path) -> None:
    """A step on a gradient of zeros would still follow AdamW's moments."""
    workload = started(tmp_path, method="dpo")
    columns = dict(workload.sample(workload.draw(DRAW), DRAW))
    workload.update(columns, DRAW)
    before = tensors(workload)
    columns = dict(workload.sample(workload.draw(DRAW), DRAW))
    columns["reward"] = np.repeat(np.arange(12, dtype=np.float32), 2)
    assert workload.update(columns, DRAW) == {"reward": 5.5, "pairs": 0.0}
    assert same(before, tensors(workload))
    columns["reward"][3] += 1
    found = workload.update(columns, DRAW)
    assert found["pairs"] == 1.0 and found["grad_norm"] > 0
    assert not same(before, tensors(workload))


NFT = "nft learns from noised images, and samples without stochastic steps"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "nft", "window": 2}, f"window: method: {NFT}; expected no window, or method: grpo"),
        ({"method": "nft", "kl": 0.1}, f"kl: method: {NFT}; expected no kl, or method: grpo"),
        ({"method": "nft", "clip": 0.1}, f"clip: method: {NFT}; expected no clip, or method: grpo or ddpo"),
        ({"method": "dpo", "kl": 0.1}, "kl: method: dpo compares pairs of noised images with the pre-trained network"),
        ({"method": "dpo", "old_most": 0.1}, "old_most: method: dpo compares"),
        ({"method": "dpo", "group": 1}, "group: dpo compares two images of a prompt; expected at least 2 (given: 1)"),
        (
            {"strength": 2.0},
            "strength: method: grpo learns from the stochastic steps of trajectories; expected no strength",
        ),
        (
            {"method": "ddpo"},
            "method: ddpo learns from the noise of denoising, but sd3 predicts the velocity of a flow",
        ),
        ({"method": "ddpo", "network": "unet", "window": 2}, "window: method: ddpo learns from every stochastic step"),
        ({"method": "ddpo", "network": "unet", "steps": 1}, "steps: the last step of unet has no noise to learn from"),
        ({"method": "nft", "network": "unet"}, "method: nft compares velocities of a flow, but unet predicts noise"),
        ({"network": "unet", "noise_level": 0.7}, "noise_level: unet follows no flow, but denoises with eta"),
        ({"eta": 0.5}, "eta: sd3 follows a flow, which has noise_level; expected no eta, or network: unet"),
        (
            {"network": "unet", "window": 6},
            "window: 6 stochastic steps do not fit into steps: 6; the last one of unet has no",
        ),
        ({"network": "unet", "patch": 16, "head_width": 5}, "head_width: expected a multiple of patch: 16"),
        ({"network": "unet", "patch": 16, "head_width": 4}, "head_width: expected an even number of at least 4"),
        ({"method": "nft", "old_most": 0, "old_rise": 0.1}, "old_rise: images are sampled from the trained weights"),
        ({"network": "unet", "guidance": 2.0}, "guidance: unet has no embedding for it"),
        ({"method": "ppo"}, "method: Input should be 'grpo', 'ddpo', 'nft' or 'dpo' (given: 'ppo')"),
    ],
)
def test_settings_that_a_method_or_network_does_not_know_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ShapeDrawing(RunFacts(seed=0, settings=settings, iterations=1))
    (found,) = str(raised.value).splitlines()
    assert found.startswith(f"workload.settings.{line}")


@pytest.mark.parametrize("name", ["method", "old_rise", "old_most"])
def test_settings_on_which_the_state_depends_stay(name: str) -> None:
    settings = {"method": "nft", name: DrawingSettings.model_validate({"method": "nft"}).model_dump()[name]}
    with pytest.raises(ConfigurationError, match=f"workload.tunable.{name}: the form of the state depends on it"):
        ShapeDrawing(RunFacts(seed=0, settings=settings, iterations=1, tunable=frozenset({name})))
