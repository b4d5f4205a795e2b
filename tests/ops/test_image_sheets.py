"""Images of a workload's samples in MLflow: one picture of each iteration that is evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from db.core.holder import this_process
from db.write.outbox import MLFLOW
from ops.integrations import image_sheets
from ops.integrations.image_sheets import LONGEST, sheet_of
from ops.integrations.mlflow_tracker import MlflowTracker
from tests.ops.integrations.test_mlflow_tracker import row
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from tests.workloads.painting import PROMPTS
from yatt_core.errors import InfrastructureError
from yatt_core.experience.prepared import prepared_folder
from yatt_core.keys import WorkKey
from yatt_core.workloads.contract import Images
from yatt_core.workloads.images import ImageFolder, encode_images, publish_images

SPEC = ROOT / "tests" / "workloads" / "painting.yaml"
WORDS = "costs $5 and $6 " * 5


class Drawn:
    """Stands for MLflow's client: draws each picture. spread: the deviation of its grey values, by run and name."""

    def __init__(self) -> None:
        self.spread: dict[tuple[str, str], float] = {}

    def log_image(self, run: str, picture: Image.Image, artifact_file: str) -> None:
        self.spread[run, artifact_file] = float(np.asarray(picture.convert("L")).std())


def undrawable(*_: object) -> Figure:
    raise Image.DecompressionBombError("many pixels")


def test_an_iteration_that_is_evaluated_sends_its_images_as_one_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    home = tmp_path / "runs"
    own = OwnRun.of(home, SPEC, "tracking.enabled=true", "evaluation.every=2")
    own.drive()
    with own.ledger() as ledger:
        fence = ledger.leases.acquire(own.run, this_process(), 60, lambda holder: True)
        sent = [each.payload for each in ledger.outbox.claim(fence, 1000, MLFLOW) if each.kind == "images"]
    assert [body["iteration"] for body in sent] == [2, 4]

    client = Drawn()
    tracker = MlflowTracker("http://nowhere", home / "artifacts")
    tracker.__dict__["_client"] = client
    (home / "toy-1").symlink_to(own.folder)
    tracker.deliver([row("images", body, "tracked") for body in sent])
    assert list(client.spread) == [("tracked", "images/000002.png"), ("tracked", "images/000004.png")]
    assert min(client.spread.values()) > 1, "something is drawn"

    with monkeypatch.context() as patched:
        patched.setattr(image_sheets, "sheet_of", undrawable)
        tracker.deliver([row("images", {**sent[0], "iteration": 5}, "tracked")])
    assert len(client.spread) == 2, "what cannot be drawn holds nothing back"
    (own.folder / sent[0]["folder"] / "images" / "manifest.json").unlink()
    tracker.deliver([row("images", {**sent[0], "iteration": 6}, "tracked")])
    assert len(client.spread) == 2, "what retention has removed holds nothing back"
    with pytest.raises(InfrastructureError, match=r"\.\./other: not a file of the run's folder"):
        tracker.deliver([row("images", {**sent[0], "folder": "../other"}, "tracked")])


@pytest.mark.parametrize("unwanted", ["reports=false", "samples=0"])
def test_no_pictures_are_sent_if_the_spec_wants_no_reports_or_samples(tmp_path: Path, unwanted: str) -> None:
    torch.set_num_threads(1)
    own = OwnRun.of(tmp_path, SPEC, "tracking.enabled=true", f"tracking.{unwanted}", "iterations=1")
    own.drive()
    with own.ledger() as ledger:
        fence = ledger.leases.acquire(own.run, this_process(), 60, lambda holder: True)
        assert not [each for each in ledger.outbox.claim(fence, 1000, MLFLOW) if each.kind == "images"]


def test_a_row_stands_for_a_prompt_wherever_its_images_are(tmp_path: Path) -> None:
    """Images of one prompt may come from two ranks; formulas are words."""
    captions = [WORDS, PROMPTS[1], WORDS]
    images = Images(
        np.full((3, 4, 4, 3), 200, np.uint8), captions, np.array([1.0, np.nan, 0.5]), np.array([1, 2, 3], np.int64)
    )
    key = WorkKey("toy-1", 0, 1, "prepare")
    digest = publish_images(tmp_path, key, 1, [encode_images(images, "here")])
    figure = sheet_of(ImageFolder.open(tmp_path / prepared_folder(0, 1, 1), digest), "samples")
    assert figure is not None
    (axes,) = figure.axes
    first, second = (label.get_text() for label in axes.get_yticklabels())
    assert first == f"{WORDS[: LONGEST - 1]}…\n0.75" and second == PROMPTS[1], "a reward that is not finite is none"
    assert len(axes.images) == 3
    figure.canvas.draw()
