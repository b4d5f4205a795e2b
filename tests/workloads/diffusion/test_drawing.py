"""Diffusion as a run: killed in the phases of an iteration, it ends with the same bits, from seeds and from latents."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flows.reports.audit import verify_run
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.in_process import OwnRun
from yatt_core.engines.train.workload.engine import WorkloadTrainEngine
from yatt_core.errors import NumericError
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PromptRef
from yatt_core.spec import load_spec
from yatt_core.workloads.diffusion.drawing import DrawingSettings
from yatt_core.workloads.inputs import materialise_workload

pytestmark = NEEDS_DIFFUSERS
SPEC = Path(__file__).parent / "drawing.yaml"
KILLED_AT = ("prepare:1", "after prepare:1", "learn:2", "after learn:2", "checkpoint:2", "commit:3", "after learn:3")


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


@pytest.mark.parametrize("keep", ["seeds", "latents"])
def test_log_probabilities_that_are_not_finite_are_a_numeric_error(keep: str, tmp_path: Path) -> None:
    """So that recovery.on_non_finite decides, whether the trajectories were sealed or are sampled again."""
    spec = load_spec(SPEC, [f"workload.settings.keep={keep}"])
    materialise_workload(spec, tmp_path)
    engine = WorkloadTrainEngine(spec, RankContext(tmp_path, tmp_path / "inputs", "", 0))
    engine.connect(0, 1, "")
    engine.initialise()
    for tensor in engine._state(engine._begun()).weights.values():
        assert isinstance(tensor, torch.Tensor)
        tensor.fill_(torch.nan)
    task = BatchTask(WorkKey("tried", 0, 1, "prepare"), 1, (), rows=(PromptRef(0, 0, 0),))
    prepared = engine.prepare(task)
    assert prepared is not None
    with pytest.raises(NumericError, match="not finite"):
        engine.learn(task, prepared)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"window": 7}, "do not fit"), ({"patch": 5}, "divide"), ({"pretraining": 10}, "too few"), ({"hue": 1}, "hue")],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrawingSettings.model_validate(settings)
