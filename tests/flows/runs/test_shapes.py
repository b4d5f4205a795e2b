"""The quickstart of diffusion through real services: shorter, but its reward rises, its images stay, and MLflow has both."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from mlflow.tracking import MlflowClient
from PIL import Image

from flows.reports.audit import verify_run
from ops.dashboard.app import create_app
from ops.queries.images import image_folder, image_grid
from tests.flows.tools import Driver
from tests.needs import NEEDS_DIFFUSERS
from yatt_core.workloads.diffusion.shapes import PROMPTS

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900), NEEDS_DIFFUSERS]
SPEC = "../../configs/shapes.yaml"
SHORT = (
    "iterations=10", "evaluation.every=5", "checkpoints.every=5", "workload.settings.pretraining=200",
    "recovery.lease_seconds=5.0",
)  # fmt: skip


def test_the_reward_rises_and_the_images_of_a_killed_run_are_all_there(driver: Driver, tmp_path: Path) -> None:
    run = driver.create(SPEC, *SHORT)
    driver.drive_until_killed(run, "learn:7")
    driver.end_actors(run)
    driver.drive(run)
    with driver.ledger() as ledger:
        accuracy = [value for _, value in ledger.metrics.history(run, "evaluation/accuracy")]
        gaps = [value for _, value in ledger.metrics.history(run, "log_probability_gap")]
        tracked = ledger.runs.find(run).mlflow_run_id
        rewards = ledger.metrics.history(run, "reward")
        report = verify_run(ledger, run, driver.home.run_folder(run), None)
        grid = image_grid(ledger, driver.home, run)
        addresses = {
            (cell.iteration, image.address) for row in grid.rows for cell in row.cells for image in cell.images
        }
        files = [image_folder(ledger, driver.home, run, number).read(address) for number, address in addresses]
    assert report.sound, report.disagreement
    assert accuracy[-1] > accuracy[0] + 0.02 and gaps == [0.0] * 10
    assert grid.iterations == tuple(range(1, 11)) and [row.caption for row in grid.rows] == list(PROMPTS)
    assert all(data.startswith(b"\x89PNG") for data in files) and not grid.lacking
    assert tracked
    mlflow = MlflowClient(driver.home.tracking_uri)
    assert [(point.step, point.value) for point in mlflow.get_metric_history(tracked, "reward")] == rewards
    assert [point.step for point in mlflow.get_metric_history(tracked, "evaluation/accuracy")] == [0, 5, 10]
    assert [each.path for each in mlflow.list_artifacts(tracked, "images")] == [
        "images/000005.png",
        "images/000010.png",
    ]
    with Image.open(mlflow.download_artifacts(tracked, "images/000010.png", str(tmp_path))) as sheet:
        assert min(sheet.size) > 300
    with TestClient(create_app(driver.home), base_url="http://127.0.0.1:8686") as client:
        page = client.get(f"/runs/{run}/rollouts").text
    assert "Images over iterations" in page and page.count("/images/10/") > len(PROMPTS)
