"""Diffusion as a run: killed in the phases of an iteration, it ends with the same bits, from seeds and from latents."""

from __future__ import annotations

import io
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from benchmarks.diffusion.training import ShuffledDrawing
from benchmarks.workloads.alone import begun
from flows.reports.audit import verify_run
from ops.queries.images import image_folder, iteration_images
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.in_process import OwnRun
from yatt_core.engines.train.base.engine import WorkloadTrainEngine
from yatt_core.engines.train.workload.own import OwnWorkload
from yatt_core.errors import NumericError
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PromptRef
from yatt_core.spec import load_spec
from yatt_core.workloads.contract import Draw
from yatt_core.workloads.diffusion.drawing import ShapeDrawing, pixels_of
from yatt_core.workloads.diffusion.drawing_settings import DrawingSettings
from yatt_core.workloads.diffusion.shapes import PROMPTS
from yatt_core.workloads.inputs import materialise_workload

pytestmark = NEEDS_DIFFUSERS
SPEC = Path(__file__).parent / "drawing.yaml"
DRAW = Draw(seed=5, iteration=1, number=0)
KILLED_AT = ("prepare:1", "after prepare:1", "learn:2", "after learn:2", "checkpoint:2", "commit:3", "after learn:3")
SOME = ("after prepare:1", "after learn:2", "after checkpoint:2")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_run_killed_in_its_phases_gives_the_same_bits_from_seeds_and_from_latents(tmp_path: Path) -> None:
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC)
    reached = [place for number, place in enumerate(KILLED_AT) if struck.drive(place, cold=number % 2 == 1) is None]
    outcome = struck.drive(cold=True)
    assert outcome is not None and outcome.state == "completed"
    assert reached == list(KILLED_AT)
    kept = OwnRun.of(tmp_path / "kept", SPEC, "workload.settings.keep=latents")
    kept.drive()
    results = [run.results() for run in (undisturbed, struck, kept)]
    assert results[0].weights_digest is not None
    assert len({result.weights_digest for result in results}) == 1
    assert len({result.metrics_digest for result in results}) == 1
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
        gaps = [value for _, value in ledger.metrics.history(struck.run, "log_probability_gap")]
        norms = [value for _, value in ledger.metrics.history(struck.run, "grad_norm")]
    assert report.sound, report.disagreement
    assert gaps == [0.0] * 3
    assert all(norm > 0 for norm in norms), "an update that changes nothing would prove nothing"


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(3, marks=pytest.mark.verify), pytest.param(4, marks=pytest.mark.verify)]
)
def test_a_run_on_several_ranks_killed_in_its_phases_gives_the_bits_of_one(ranks: int, tmp_path: Path) -> None:
    """With two, one rank has two of the three batches; with four, one rank has none."""
    alone = OwnRun.of(tmp_path / "alone", SPEC)
    alone.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC, f"trainer.engine.ranks={ranks}")
    places = SOME if ranks == 2 else KILLED_AT
    reached = [place for number, place in enumerate(places) if struck.drive(place, cold=number % 2 == 1) is None]
    struck.drive(cold=True)
    assert reached == list(places)
    assert struck.results().weights_digest == alone.results().weights_digest is not None
    assert struck.results().metrics_digest == alone.results().metrics_digest
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
    assert report.sound, report.disagreement


def test_another_number_of_ranks_goes_on_with_the_same_bits_and_its_drift_is_recorded(tmp_path: Path) -> None:
    alone = OwnRun.of(tmp_path / "alone", SPEC)
    alone.drive()
    changed = OwnRun.of(tmp_path / "changed", SPEC)
    changed.drive(until=1)
    changed.revise("trainer.engine.ranks=2")
    assert changed.drive("after learn:2") is None
    assert changed.drive("after checkpoint:2", cold=True) is None
    changed.drive(cold=True)
    assert changed.results().weights_digest == alone.results().weights_digest is not None
    with changed.ledger() as ledger:
        drifts = [link.body for link in ledger.events.of_kind(changed.run, "drift")]
        report = verify_run(ledger, changed.run, changed.folder, None)
    assert drifts and all(drift["at"] == 1 and drift["replayed"] == 0 for drift in drifts), "each session says so"
    assert all(drift["changes"] == {"layout": ["torch x 1", "torch x 2"]} for drift in drifts)
    assert report.sound, report.disagreement


def test_a_stage_goes_on_from_the_network_of_another_run(tmp_path: Path) -> None:
    first = OwnRun.of(tmp_path / "first", SPEC)
    first.drive()
    with first.ledger() as ledger:
        newest = ledger.records.checkpoints(first.run)[0]
    stage = OwnRun.of(tmp_path / "stage", SPEC, f"workload.start.path={first.folder / newest.folder}")
    with mock.patch("yatt_core.workloads.diffusion.drawing.pretrain") as pretrain:
        stage.drive(until=1)
    assert not pretrain.called, "its network is another's"
    with stage.ledger() as ledger:
        begun = ledger.commits.at(stage.run, 0)
        divergences = ledger.metrics.history(stage.run, "divergence")
    assert begun is not None and begun.weights_digest == first.results().weights_digest
    assert divergences == [(1, 0.0)], "the reference is that network too"


@pytest.mark.parametrize("keep", ["seeds", "latents"])
def test_log_probabilities_that_are_not_finite_are_a_numeric_error(keep: str, tmp_path: Path) -> None:
    """So that recovery.on_non_finite decides, whether the trajectories were sealed or are sampled again."""
    spec = load_spec(SPEC, [f"workload.settings.keep={keep}"])
    materialise_workload(spec, tmp_path)
    workload = OwnWorkload(spec, RankContext(tmp_path, tmp_path / "inputs", "", 0))
    engine = WorkloadTrainEngine(spec, workload)
    engine.connect(0, 1, "")
    engine.initialise()
    for tensor in workload._state(workload._begun()).weights.values():
        assert isinstance(tensor, torch.Tensor)
        tensor.fill_(torch.nan)
    task = BatchTask(WorkKey("tried", 0, 1, "prepare"), 1, (), rows=(PromptRef(0, 0, 0),))
    prepared = engine.prepare(task)
    assert prepared is not None
    with pytest.raises(NumericError, match="not finite"):
        engine.learn(task, prepared)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 7}, "do not fit"),
        ({"patch": 5}, "divide"),
        ({"group": 24}, "multiple"),
        ({"pretraining": 10}, "too few"),
        ({"hue": 1}, "hue"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrawingSettings.model_validate(settings)


def test_the_images_of_an_iteration_are_those_that_were_sampled(tmp_path: Path) -> None:
    """Pixels of the sealed latents, for each image with its prompt, reward and seed."""
    run = OwnRun.of(tmp_path, SPEC, "workload.settings.keep=latents", "iterations=1")
    run.drive()
    (sealed,) = run.folder.glob("experience/b000/i000001/*/rank-00.safetensors")
    columns = load_file(sealed)
    with run.ledger() as ledger:
        shown = iteration_images(ledger, run.home, run.run, 1)
        opened = image_folder(ledger, run.home, run.run, 1)
    assert [image.caption for image in shown.images] == [PROMPTS[place] for place in columns["prompt"]]
    assert [int(image.seed) for image in shown.images] == columns["seed"].view(np.uint64).tolist()
    assert [image.reward for image in shown.images] == columns["reward"].astype(np.float64).tolist()
    drawn = ((columns["latents"][:, -1].clip(-1, 1) + 1) * np.float32(127.5)).round().astype(np.uint8)
    for image, expected in zip(shown.images, drawn.transpose(0, 2, 3, 1), strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(opened.read(image.address)))), expected)


def test_pixels_that_are_no_numbers_are_grey() -> None:
    images = torch.tensor([torch.nan, -torch.inf, torch.inf, 0.5]).view(1, 1, 2, 2).expand(1, 3, 2, 2)
    assert pixels_of(images)[0, :, :, 0].tolist() == [[128, 0], [255, 191]]


def test_other_advantages_give_another_update(tmp_path: Path) -> None:
    """The control of the benchmark learns from the same advantages in another order."""
    settings = load_spec(SPEC).workload.settings
    states = []
    for kind in (ShapeDrawing, ShuffledDrawing, ShapeDrawing):
        workload = begun(kind, tmp_path / "inputs", seed=5, iterations=1, **{**settings, "group": 4, "kl": 0.0})
        columns = dict(workload.sample(workload.draw(DRAW), DRAW))
        columns["reward"] = np.arange(len(columns["reward"]), dtype=np.float32)
        rewards = torch.from_numpy(columns["reward"])
        workload.update(columns, DRAW)
        states.append((workload.advantages(rewards, DRAW), workload.state().weights["proj_out.bias"]))
    assert torch.equal(states[0][0].sort().values, states[1][0].sort().values)
    assert torch.equal(states[0][1], states[2][1]) and not torch.equal(states[0][1], states[1][1])
