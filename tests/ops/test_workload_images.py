"""What commands, pages and the API show of the images that a workload's samples are."""

from __future__ import annotations

import hashlib
import html
import io
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from flows.backup.folder import BackupFolder
from flows.backup.restore import restore_backup
from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.preflight.workload_trial import evaluations_of
from tests.flows.backup.scenarios import backup_of
from tests.ops.conftest import Yatt
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from tests.workloads.painting import GROUP, PROMPTS
from yatt_core.spec import load_spec

SPEC = ROOT / "tests" / "workloads" / "painting.yaml"
ALL = GROUP * len(PROMPTS)


@pytest.fixture
def run(home: Home) -> OwnRun:
    torch.set_num_threads(1)
    own = OwnRun.of(home.folder, SPEC)
    own.drive()
    return own


def client_of(run: OwnRun, **given: bool) -> TestClient:
    return TestClient(create_app(run.home, **given), base_url="http://127.0.0.1:8686")


def test_a_grid_of_prompts_over_iterations_stands_on_the_page(run: OwnRun) -> None:
    with client_of(run) as client:
        grid = client.get(f"/api/v1/runs/{run.run}/images", params={"width": 3}).json()
        page = client.get(f"/runs/{run.run}/rollouts").text
        assert grid["iterations"] == [1, 3, 4] and [row["caption"] for row in grid["rows"]] == list(PROMPTS)
        for row in grid["rows"]:
            assert html.escape(row["caption"]) in page
            for cell in row["cells"]:
                assert cell["count"] == GROUP and f"reward {cell['reward']:.4g}" in page
                for image in cell["images"]:
                    path = f"/runs/{run.run}/images/{cell['iteration']}/{image['address']}.png"
                    assert f'src="{path}"' in page and image["seed"] in page and image["file"] in page
                    answer = client.get(path)
                    assert answer.headers["content-type"] == "image/png"
                    assert answer.headers["x-content-type-options"] == "nosniff"
                    assert "script-src 'self'" in answer.headers["content-security-policy"]
                    assert hashlib.sha256(answer.content).hexdigest() == image["address"]
                    assert (run.home.folder / image["file"]).read_bytes() == answer.content
        assert PROMPTS[1] not in page, "a caption is a text, not markup"
        assert not re.search(r"<img[^>]+style=|<button[^>]+onclick=", page)
        some = client.get(f"/runs/{run.run}/rollouts", params={"first": 3, "last": 4}).text
        assert "iteration 3</a>" in some and "iteration 2</a>" not in some


def test_an_iteration_lists_its_images_and_their_files(run: OwnRun, yatt: Yatt) -> None:
    with client_of(run) as client:
        listed = client.get(f"/api/v1/runs/{run.run}/images/3").json()["images"]
        assert len(listed) == ALL
        shown = client.get(f"/runs/{run.run}/rollouts", params={"iteration": 3}).text
        assert f"over {GROUP} images" in shown
        for address in ("0" * 64, "A" * 64, "manifest.json", "..%2Fmanifest"):
            answer = client.get(f"/runs/{run.run}/images/3/{address}.png")
            assert answer.status_code >= 400 and answer.headers["content-type"] != "image/png"
        assert client.get(f"/api/v1/runs/{run.run}/images/9").status_code == 404
    images = yatt("rollouts", run.run, "--iteration", "3", "-o", "json").document["images"]
    assert images == listed
    text = yatt("rollouts", run.run, "--iteration", "3").out
    assert f"Images of {run.run}, iteration 3" in text and "a bright wall" in text


def test_damaged_images_hide_nothing_else(run: OwnRun, yatt: Yatt) -> None:
    (manifest,) = run.folder.glob("experience/b000/i000002/*/images/manifest.json")
    manifest.write_text("{}")
    with client_of(run) as client:
        grid = client.get(f"/api/v1/runs/{run.run}/images").json()
        whole = client.get(f"/runs/{run.run}/rollouts", params={"iteration": 3}).text
        damaged = client.get(f"/runs/{run.run}/rollouts", params={"iteration": 2}).text
    assert grid["iterations"] == [1, 2, 3, 4] and not grid["lacking"]
    assert [cell["count"] for cell in grid["rows"][0]["cells"]] == [GROUP, 0, GROUP, GROUP]
    (problem,) = grid["problems"]
    assert problem.startswith("images of iteration 2: ") and str(manifest) in problem
    for page in (whole, damaged):
        assert html.escape(problem) in page and "Images over iterations" in page
        assert "rank-00.safetensors" in page
    assert f"over {GROUP} images" in whole and f"over {GROUP} images" not in damaged
    assert "images" in yatt("rollouts", run.run, "--iteration", "3", "-o", "json").document
    shown = yatt("rollouts", run.run, "--iteration", "2", "-o", "json")
    assert shown.code == 1 and str(manifest) in shown.err
    assert [column["name"] for column in shown.document["columns"]] == ["prompt", "reward", "seed"]
    assert "images" not in shown.document


def test_a_check_forecasts_time_and_images(yatt: Yatt) -> None:
    tried = yatt("check", str(SPEC), "-o", "json").document["workload"]
    assert tried["image_bytes"] > 0 and tried["forecast_seconds"] > 0
    text = yatt("check", str(SPEC)).out
    assert "forecast: " in text and "on one rank for 4 iterations" in text and "an iteration keeps images: " in text


@pytest.mark.parametrize(("iterations", "every", "times"), [(40, 10, 5), (41, 10, 6), (9, 0, 2), (3, 5, 2)])
def test_a_run_evaluates_at_the_start_when_due_and_at_the_end(iterations: int, every: int, times: int) -> None:
    spec = load_spec(SPEC, [f"iterations={iterations}", f"evaluation.every={every}"])
    assert evaluations_of(spec) == times


def test_images_need_the_sign_in_that_pages_need(run: OwnRun) -> None:
    with client_of(run) as client:
        address = client.get(f"/api/v1/runs/{run.run}/images/1").json()["images"][0]["address"]
    with client_of(run, require_sign_in=True) as client:
        for path in (f"/runs/{run.run}/images/1/{address}.png", f"/api/v1/runs/{run.run}/images/1"):
            answer = client.get(path, follow_redirects=False)
            assert answer.status_code in (303, 401) and not answer.content.startswith(b"\x89PNG")


def test_images_are_exported_as_tables(run: OwnRun, yatt: Yatt, tmp_path: Path) -> None:
    target = tmp_path / "images"
    done = yatt("export", run.run, "--experience", "--iterations", "2:3", "--to", str(target), "-o", "json").document
    assert done["iterations"] == [2, 3] and done["samples"] == 2 * ALL
    assert sorted(path.name for path in target.iterdir()) == ["i000002.parquet", "i000003.parquet"]
    rows = pq.read_table(target / "i000003.parquet").to_pylist()
    assert [row["caption"] for row in rows] == [prompt for prompt in PROMPTS for _ in range(GROUP)]
    for row in rows:
        data = row["image"]["bytes"]
        assert row["image"]["path"] == f"{hashlib.sha256(data).hexdigest()}.png"
        assert Image.open(io.BytesIO(data)).format == "PNG"


def test_a_workload_without_images_has_none_to_export_or_show(home: Home, yatt: Yatt) -> None:
    torch.set_num_threads(1)
    own = OwnRun.of(home.folder, ROOT / "tests" / "workloads" / "counting.yaml")
    own.drive()
    answer = yatt("export", own.run, "--experience")
    assert answer.code == 2 and "has shown no images" in answer.err
    assert "images" not in yatt("rollouts", own.run, "-o", "json").document
    with client_of(own) as client:
        assert "Images over iterations" not in client.get(f"/runs/{own.run}/rollouts").text


def test_a_backup_has_the_images(run: OwnRun, tmp_path: Path) -> None:
    backup_of(run.home, tmp_path / "backups")
    backups = BackupFolder(tmp_path / "backups")
    again = Home(tmp_path / "again")
    restore_backup(backups, backups.find(None), again, again.ledger_address)
    names = [path.relative_to(run.home.folder) for path in run.folder.rglob("*.png")]
    assert len(names) == len({*names}) > 0
    assert all((again.folder / name).read_bytes() == (run.home.folder / name).read_bytes() for name in names)
