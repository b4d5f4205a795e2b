"""`yatt sweep show` and `resume`, the winner's spec, and the pages, on a sweep whose runs are simulated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from db.ledger import Ledger
from flows.queueing.pools_file import pools_file
from flows.run.home import Home
from flows.sweeps.record import SWEEP, WINNER
from ops.dashboard.app import create_app
from ops.queueing import child_runs
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, check_page, links
from tests.flows.sweeps.support import RATE, RUN, TEMPERATURE, Lab
from tests.ops.conftest import Yatt
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec import load_spec, parse_spec


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("sweeps")
    materialise(parse_spec(RUN, "run"), folder)
    lab = Lab.of(folder / "runs", folder / INPUTS)
    lab.run()
    return lab


@pytest.fixture
def home(swept: Lab, tmp_path: Path) -> Home:
    return Home(Path(shutil.copytree(swept.home.folder, tmp_path / "runs")))


def test_the_sweep_is_shown_by_any_of_its_runs(yatt: Yatt, home: Home, swept: Lab) -> None:
    shown = yatt("sweep", "show", "latest", "-o", "json").document
    assert shown["sweep"] == "swept-1" and shown["rungs"] == [2, 8, 32] and not shown["following"]
    assert [trial["state"] for trial in shown["trials"]].count("stopped") == 7
    assert shown["iterations"] == 8 * 2 + 2 * 6 + 24 and shown["iterations_fraction"] == pytest.approx(52 / 256)
    (winner,) = [body for kind, body in swept.chain() if kind == WINNER]
    assert (shown["winner"], shown["winner_setting"]) == (winner["trial"], winner["setting"])
    assert yatt("sweep", "show", "swept-4", "-o", "json").document == shown
    text = yatt("sweep", "show", "swept-1").out
    assert "learning_rate" in text and f"best: trial {winner['trial']}" in text and "swept-9" in text
    assert yatt("sweep", "resume", "latest", "-o", "json").document == shown


def test_the_winners_spec_is_written_and_checked(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    target = tmp_path / "winner.yaml"
    setting = yatt("sweep", "show", "latest", "--to", str(target), "-o", "json").document["winner_setting"]
    spec = load_spec(target)
    assert (spec.trainer.optimizer.learning_rate, spec.rollout.temperature) == (setting[RATE], setting[TEMPERATURE])
    assert spec.tracking.tags == {} and yatt("check", str(target)).code == 0
    again = yatt("sweep", "show", "latest", "--to", str(target))
    assert again.code == 2 and str(target) in again.err


def test_an_unfinished_sweep_says_what_comes_next(yatt: Yatt, home: Home, swept: Lab, tmp_path: Path) -> None:
    other = Lab.of(home.folder, swept.inputs)
    shown = yatt("sweep", "show", other.sweep, "-o", "json").document
    assert shown["following"] == "propose trial 0" and shown["winner"] is None
    for option, file in (("--to", "winner.yaml"), ("--out", "plot.png")):
        answer = yatt("sweep", "show", other.sweep, option, str(tmp_path / file))
        assert answer.code == 2 and not (tmp_path / file).exists()


def test_parallel_coordinates_are_drawn(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    assert yatt("sweep", "show", "latest", "--out", str(tmp_path / "plot.png")).code == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_pages_show_the_trials(home: Home) -> None:
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:
        assert "/sweeps/swept-1" in list(links(check_page(browser.get("/sweeps").text)))
        tree = check_page(browser.get("/sweeps/swept-3").text)
        assert {f"/runs/swept-{number}" for number in range(1, 10)} <= set(links(tree))
        lines = [each.attrib["class"] for each in tree.iter() if str(each.tag).endswith("polyline")]
        assert sorted(lines) == ["best", *["trial"] * 7]
        assert browser.get("/sweeps/nothing-1").status_code == 404


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grid", "--over", f"{RATE}=1e-4..1e-2:log"], "number of points"),
        (["--asha"], "space"),
        (["--over", "rollout.temprature=0.7,1.0"], "did you mean 'temperature'"),
        (["--over", f"{TEMPERATURE}"], "expected KEY=VALUE"),
        (["--over", f"{TEMPERATURE}=0.7,1.0", "--grid", "--random"], "--grid and --random"),
        (["--over", f"{TEMPERATURE}=0.7,1.0", "--seeds", "0,a"], "--seeds"),
        (
            ["--over", f"{TEMPERATURE}=0.7,1.0", "--metric", "evaluation/accuracies"],
            "did you mean 'evaluation/accuracy'",
        ),
        (["--over", f"{TEMPERATURE}=0.7,1.0", "--asha", "--set", "evaluation.every=0"], "no rung before the end"),
        (["--over", "seed=1,2"], "`seeds`"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_is_written(
    yatt: Yatt, home: Home, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    answer = yatt("sweep", str(tmp_path / "run.yaml"), *words)
    assert answer.code == 2 and said in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.runs.list()) == 9 and SWEEP.records(ledger) == ["swept-1"]


@pytest.mark.parametrize(
    ("options", "pools", "said"),
    [
        (["--at-once", "3"], "", "--at-once 3: this machine has 2 GPUs"),
        ([], "pools: {main: {devices: 9, quotas: {default: 1}}}", "can have at most 1 of a pool for project default"),
    ],
)
def test_runs_that_never_get_their_devices_are_refused_before_anything_is_written(
    yatt: Yatt, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], pools: str, said: str
) -> None:
    monkeypatch.setattr(child_runs, "local_gpus", lambda: [("Abacus", 1)] * 2)
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    if pools:
        pools_file(home).write_text(pools)
    answer = yatt("sweep", str(tmp_path / "run.yaml"), "--over", f"{TEMPERATURE}=0.7,1.0", *options)
    assert answer.code == 2 and said in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.runs.list()) == 9
