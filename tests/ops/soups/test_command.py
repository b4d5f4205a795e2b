"""`yatt soup show` and `merge`, the runs of merged models, and the pages, on a soup whose runs are simulated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient

from db.ledger import Ledger
from flows.reports.audit import verify_run
from flows.reports.lineage import lineage_of
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.dashboard.app import create_app
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, check_page, links, words
from tests.flows.soups.support import RUN, Kitchen, drive_run
from tests.ops.conftest import Yatt
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec import parse_spec


@pytest.fixture(scope="module")
def cooked(tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    folder = tmp_path_factory.mktemp("soups")
    materialise(parse_spec(RUN, "run"), folder)
    kitchen = Kitchen.of(folder / "runs", folder / INPUTS)
    kitchen.cook()
    return kitchen


@pytest.fixture
def home(cooked: Kitchen, tmp_path: Path) -> Home:
    return Home(Path(shutil.copytree(cooked.home.folder, tmp_path / "runs")))


def test_the_soup_is_shown_by_any_of_its_runs(yatt: Yatt, home: Home) -> None:
    shown = yatt("soup", "show", "latest", "-o", "json").document
    assert shown["soup"] == "brew-1" and shown["beta"] in (0.6, 0.8) and not shown["following"]
    assert [len(soup["models"]) for soup in shown["soups"]] == [3, 3]
    assert shown["hypervolume_ratio"] > 0 and set(shown["hypervolumes"]) == {"0.6", "0.8"}
    assert yatt("soup", "show", "brew-4", "-o", "json").document == shown
    text = yatt("soup", "show", "brew-1").out
    assert "Rewarded Soup" in text and "Kendall's tau" in text and "brew-7" in text


def test_a_merged_model_is_a_run_with_its_parents(yatt: Yatt, home: Home, cooked: Kitchen, tmp_path: Path) -> None:
    beta = yatt("soup", "show", "latest", "-o", "json").document["beta"]
    made = yatt("soup", "merge", "latest", "--preference", "0.7,0.3", "--extrapolation", "0.5", "-o", "json").document
    run = made["run"]
    g = 1 - beta
    coefficients = [each["coefficient"] for each in made["parents"]]
    assert coefficients == pytest.approx([1.5 * (0.7 - g) / (beta - g), 1.5 * (0.3 - g) / (beta - g), -0.5])
    with Ledger.open(home.ledger) as ledger:
        found = lineage_of(ledger, home, run)
        assert found.merge is not None and found.merge["soup"] == "brew-1"
        assert [parent["run"] for parent in found.merge["parents"]][-1] == "brew-1"
        backbone = found.merge["parents"][0]
        assert backbone["weights_digest"] == ledger.records.checkpoints(backbone["run"])[0].weights_digest
        assert lineage_of(ledger, home, backbone["run"]).merged_into == (run,)
        assert [part.weight for part in current_spec(ledger, run).rewards.parts] == pytest.approx([0.5, 1.4, 0.3])
        assert verify_run(ledger, run, home.run_folder(run), None).sound
        folder = home.run_folder(run) / found.checkpoint["folder"]
    stored = safetensors.numpy.load_file(folder / "weights" / "model.safetensors")
    total = np.zeros(2, np.float32)
    for parent in found.merge["parents"]:
        path = home.run_folder(parent["run"]) / "checkpoints"
        file = (
            path
            / f"b000-i{parent['iteration']:06d}.t{parent['term']:04d}"
            / "weights"
            / "rank-00000-of-00001.safetensors"
        )
        total += np.float32(parent["coefficient"]) * safetensors.numpy.load_file(file)["mix"]
    assert np.array_equal(stored["mix"], total)
    assert (folder / "optimizer").is_dir(), "the run can be trained on"
    assert run in yatt("soup", "show", "latest").out and backbone["run"] in yatt("lineage", run).out


def test_a_merged_model_can_be_promoted(yatt: Yatt, home: Home) -> None:
    run = yatt("soup", "merge", "brew-1", "--preference", "0.5,0.5", "-o", "json").document["run"]
    assert yatt("promote", run, "--to", "champion", "--why", "the best of both").code == 0
    aliases = yatt("aliases", run, "-o", "json").document["aliases"]
    assert aliases["champion"]["iteration"] == 0
    with Ledger.open(home.ledger) as ledger:
        assert aliases["champion"]["weights_digest"] == ledger.commits.latest(run).weights_digest


@pytest.mark.parametrize("preference", ["0.7", "0.7,0.7", "1.5,-0.5", "a,b"])
def test_a_preference_that_is_none_is_refused(yatt: Yatt, home: Home, preference: str) -> None:
    answer = yatt("soup", "merge", "latest", f"--preference={preference}")
    assert answer.code == 2 and "--preference" in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.runs.list()) == 7


def test_the_target_folder_is_checked_before_anything_is_merged(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    answer = yatt("soup", "merge", "latest", "--preference", "0.5,0.5", "--to", str(tmp_path))
    assert answer.code == 2 and str(tmp_path) in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.runs.list()) == 7


def test_an_unfinished_soup_says_what_is_missing(yatt: Yatt, home: Home, cooked: Kitchen) -> None:
    other = Kitchen.of(home.folder, cooked.inputs)
    assert "supervised" in yatt("soup", "show", "latest").out
    answer = yatt("soup", "merge", other.soup, "--preference", "0.5,0.5")
    assert answer.code == 2 and f"yatt soup resume {other.soup}" in answer.err
    drive_run(other, other.soup, 0)
    assert yatt("soup", "show", other.soup, "-o", "json").document["following"].startswith("train 4 runs")
    assert yatt("soup", "show", other.soup, "--out", "front.png").code == 2


def test_a_damaged_backbone_is_not_merged(yatt: Yatt, home: Home) -> None:
    beta = yatt("soup", "show", "latest", "-o", "json").document["beta"]
    members = yatt("soup", "show", "latest", "-o", "json").document["members"]
    backbone = next(member["run"] for member in members if member["beta"] == beta)
    (file,) = (home.run_folder(backbone) / "checkpoints").glob("b000-i000010*/weights/*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    answer = yatt("soup", "merge", "latest", "--preference", "0.5,0.5")
    assert answer.code == 1 and str(file) in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.runs.list()) == 7


def test_the_fronts_are_drawn(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    assert yatt("soup", "show", "latest", "--out", str(tmp_path / "front.png")).code == 0
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_the_pages_show_front_models_and_parents(yatt: Yatt, home: Home) -> None:
    run = yatt("soup", "merge", "latest", "--preference", "0.5,0.5", "-o", "json").document["run"]
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:
        tree = check_page(browser.get("/soups").text)
        assert "/soups/brew-1" in list(links(tree))
        tree = check_page(browser.get("/soups/brew-1").text)
        assert {f"/runs/brew-{number}" for number in range(1, 8)} <= set(links(tree))
        assert f"/runs/{run}/lineage" in list(links(tree))
        circles = [each for each in tree.iter() if str(each.tag).endswith("circle") and each.attrib["class"] != "halo"]
        assert len(circles) == 3 + 3 + 2
        lineage = check_page(browser.get(f"/runs/{run}/lineage").text)
        assert "/soups/brew-1" in list(links(lineage)) and "+0.500" in words(lineage)
        assert browser.get("/soups/nothing-1").status_code == 404


def test_a_soup_of_another_kind_of_spec_is_refused(yatt: Yatt, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    spec = {"name": "brew", "base": "run.yaml", "objectives": ["brief", "polite"], "betas": [0.5], "typo": 1}
    (tmp_path / "soup.yaml").write_text(json.dumps(spec))
    answer = yatt("soup", "run", str(tmp_path / "soup.yaml"))
    assert answer.code == 2 and "typo" in answer.err
    (tmp_path / "soup.yaml").write_text(json.dumps({key: spec[key] for key in ("name", "base", "objectives")}))
    answer = yatt("soup", "run", str(tmp_path / "soup.yaml"))
    assert answer.code == 2 and "'polite'" in answer.err and str(tmp_path / "soup.yaml") in answer.err
