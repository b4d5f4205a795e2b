"""`yatt deploy` without a server: refusals before anything is created, and the prefect.yaml that it writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from ruamel.yaml import YAML

from db.ledger import Ledger
from flows.run.home import Home
from flows.run.owner import owner_of
from tests.ops.conftest import Answer, Yatt
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.supervisor.runner import free_port

NIGHTLY = ("--cron", "0 22 * * *")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates the settings of Prefect's client, which belong to the process; these tests contact no server."""
    monkeypatch.setattr("flows.prefect_io.prefect_server.use_server", lambda folder, address, password: None)


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml_text(toy_spec().model_dump(mode="json")))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "prefect.yaml"


def refused(answer: Answer, says: str) -> None:
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and says in answer.err and "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cron", "0 25 * * *"], "--cron: '0 25 * * *': hour: '25' is not in 0-23"),
        (["--cron", "0 22 * *"], "--cron: '0 22 * *' has 4 fields; expected five fields"),
        (
            [*NIGHTLY, "--timezone", "Europe/Berln"],
            "there is no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?",
        ),
        ([*NIGHTLY, "--for", "8 hours"], "did you mean 8h?"),
        (["--interval", "often"], "--interval: 'often' "),
        (["--interval", "0h"], "--interval: '0h' "),
        (["--interval", "9s"], "at least 10s"),
        (["--interval", "1h", "--timezone", "Berlin"], "did you mean 'Europe/Berlin'?"),
        ([], "--cron, --interval or --manual: "),
        ([*NIGHTLY, "--manual"], "--cron, --interval or --manual: "),
        (["--manual", "--timezone", "UTC"], "--timezone: "),
        ([*NIGHTLY, "--name", "every night!"], "--name: 'every night!' "),
        ([*NIGHTLY, "--run", "toy-1"], "SPEC or --run: "),
        ([*NIGHTLY, "--set", "iteratons=3"], "iteratons: unknown key; did you mean 'iterations'?"),
    ],
)
def test_errors_are_reported_before_anything_is_created(
    yatt: Yatt, home: Home, spec_file: Path, project: Path, words: list[str], says: str
) -> None:
    refused(yatt("deploy", str(spec_file), "--file", str(project), *words), says)
    assert not home.folder.exists() and not project.exists()


@pytest.mark.parametrize("value", ["x" * 10_000, "* " * 5_000])
@pytest.mark.parametrize(
    "words", [["--manual", "--name"], ["--interval", "1h", "--timezone"], ["--cron"], ["--interval"]]
)
def test_an_invalid_option_is_not_repeated_in_full(
    yatt: Yatt, spec_file: Path, project: Path, words: list[str], value: str
) -> None:
    answer = yatt("deploy", str(spec_file), "--file", str(project), *words, value)
    refused(answer, words[-1])
    assert "…" in answer.err and len(answer.err) < 1_500


def test_without_a_server_it_says_how_to_get_one(yatt: Yatt, home: Home, spec_file: Path) -> None:
    refused(yatt("deploy", str(spec_file), *NIGHTLY), "no Prefect server is known: start one with `yatt up`")
    assert not home.folder.exists()


def test_an_unreachable_server_is_named(
    yatt: Yatt, home: Home, spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:hunter2@{address}")
    with temporary_settings({PREFECT_API_URL: f"http://me:hunter2@{address}"}):
        answer = yatt("deploy", str(spec_file), *NIGHTLY)
    assert (answer.code, answer.out) == (1, "")
    assert f"error: looking for deployment toy: Prefect's server at http://{address}: ConnectError: " in answer.err
    assert "`yatt up`" in answer.err and "PREFECT_API_URL" in answer.err
    assert "hunter2" not in answer.err
    assert not home.folder.exists()


@pytest.mark.parametrize("address", ["me:hunter2@host", "http://me:hunter2@host:4x/api", "ftp://host/api", "http://"])
def test_an_invalid_server_address_is_reported(
    yatt: Yatt, home: Home, spec_file: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", address)
    answer = yatt("deploy", str(spec_file), *NIGHTLY)
    refused(answer, "http://127.0.0.1:4200/api")
    assert answer.err.startswith("error: PREFECT_API_URL: ") and "hunter2" not in answer.err
    assert not home.folder.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("deployments: {name: x}", "prefect.yaml: deployments: expected a list of mappings"),
        ("deployments: [{nam: x}]", "prefect.yaml: deployments: expected a list of mappings"),
        ("- 1", "prefect.yaml: expected a mapping"),
        ("a: [", "prefect.yaml: cannot be read as YAML"),
    ],
)
def test_an_invalid_prefect_yaml_is_left_unchanged(
    yatt: Yatt, home: Home, spec_file: Path, project: Path, text: str, says: str
) -> None:
    project.write_text(text)
    refused(yatt("deploy", str(spec_file), "--file", str(project), *NIGHTLY), says)
    assert project.read_text() == text and not home.folder.exists()


def test_no_run_is_created_if_prefect_yaml_cannot_be_written(
    yatt: Yatt, home: Home, spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "away" / "prefect.yaml"
    refused(yatt("deploy", str(spec_file), "--file", str(nowhere), *NIGHTLY), f"there is no folder {nowhere.parent}")
    nowhere.parent.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != nowhere.parent)  # Root may write anywhere.
    refused(yatt("deploy", str(spec_file), "--file", str(nowhere), *NIGHTLY), f"{nowhere.parent} is not writable")
    assert not home.folder.exists() and not nowhere.exists()


def entry(project: Path, name: str) -> dict[str, Any]:
    (found,) = [item for item in YAML(typ="safe").load(project.read_text())["deployments"] if item["name"] == name]
    return found


def test_the_entry_in_a_prefect_yaml_with_other_entries(yatt: Yatt, home: Home, spec_file: Path, project: Path) -> None:
    project.write_text("# ours\nprefect-version: 3.7.7\ndeployments:\n- name: other  # theirs\n  entrypoint: a.py:f\n")
    answer = yatt(
        "deploy", str(spec_file), *NIGHTLY, "--for", "8h", "--timezone", "Europe/Berlin", "--file", str(project),
        "-o", "json",
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    assert answer.document["deployment"] == "yatt/toy" and answer.document["run"] == "toy-1"
    for window in answer.document["windows"]:
        begins, ends = (int(window[key][11:13]) for key in ("begins", "ends"))
        assert begins in (20, 21) and ends == (begins + 8) % 24, "22:00 in Berlin, for eight hours"
    with Ledger.open(home.ledger) as ledger:
        assert ledger.runs.find("toy-1").state == "created"
        owner = owner_of(ledger, "toy-1")
    assert entry(project, "toy") == {
        "name": "toy",
        "entrypoint": "ops.scheduled.window",
        "tags": ["yatt"],
        "parameters": {
            "deployed_run": "toy-1",
            "home": str(home.folder),
            "owner": owner,
            "run": "continue",
            "window": "8h",
        },
        "schedules": [{"cron": "0 22 * * *", "timezone": "Europe/Berlin"}],
        "work_pool": {"name": "yatt", "job_variables": {"env": {"PREFECT_LOGGING_LEVEL": "WARNING"}}},
        "pull": [{"prefect.deployments.steps.set_working_directory": {"directory": str(home.folder)}}],
    }
    assert project.read_text().startswith("# ours\nprefect-version: 3.7.7\n") and "# theirs" in project.read_text()


def test_a_repeated_deployment_keeps_its_run_and_position(
    yatt: Yatt, home: Home, spec_file: Path, project: Path
) -> None:
    words = ("deploy", str(spec_file), "--file", str(project))
    assert yatt(*words, "--manual", "--name", "first").code == 0
    assert yatt(*words, "--manual", "--name", "second").out.startswith("yatt/second drives run toy-2")
    assert yatt(*words, "--interval", "6h", "--name", "first").out.startswith("yatt/first drives run toy-1")
    names = [item["name"] for item in YAML(typ="safe").load(project.read_text())["deployments"]]
    assert names == ["first", "second"]
    (schedule,) = entry(project, "first")["schedules"]
    assert (
        schedule["interval"] == 21600.0
        and schedule["timezone"] == "UTC"
        and entry(project, "second")["schedules"] == []
    )
    written = project.read_text()
    refused(
        yatt(*words, "--manual", "--name", "first", "--set", "seed=7"),
        "deployment first drives run toy-1, whose spec differs in seed; change the run with `yatt resume toy-1 --set",
    )
    assert project.read_text() == written
    with Ledger.open(home.ledger) as ledger:
        assert {row.id for row in ledger.runs.list()} == {"toy-1", "toy-2"}


def test_a_deployment_that_starts_new_runs_says_so(yatt: Yatt, spec_file: Path, project: Path) -> None:
    words = ("deploy", str(spec_file), "--manual", "--file", str(project))
    assert "new runs with the spec of toy-1" in yatt(*words, "--new-run-each-time").out
    assert entry(project, "toy")["parameters"]["run"] == "new"
    assert yatt(*words).out.startswith("yatt/toy drives run toy-1")
    assert entry(project, "toy")["parameters"]["run"] == "continue"


def test_a_deployment_of_another_home_is_not_taken_over(
    yatt: Yatt, home: Home, spec_file: Path, project: Path, tmp_path: Path
) -> None:
    words = ("deploy", str(spec_file), "--manual", "--file", str(project))
    assert yatt(*words).code == 0
    refused(
        yatt(*words, "--home", str(tmp_path / "elsewhere")), f"--name: deployment toy belongs to home {home.folder};"
    )


def test_a_deployment_of_another_ledger_is_taken_over_only_by_run_name(
    yatt: Yatt, home: Home, spec_file: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--manual", "--name", "toy", "--file", str(project))
    assert yatt("deploy", str(spec_file), *words).code == 0
    owner = entry(project, "toy")["parameters"]["owner"]
    home.run_folder("toy-1").rename(tmp_path / "toy-1")
    monkeypatch.setenv("YATT_LEDGER", f"sqlite:///{tmp_path}/other.db")
    assert seed_run(home) == "toy-1"
    refused(yatt("deploy", str(spec_file), *words), "run toy-1 of another ledger")
    assert entry(project, "toy")["parameters"]["owner"] == owner
    assert yatt("deploy", "--run", "toy-1", *words).code == 0
    assert entry(project, "toy")["parameters"]["owner"] != owner


def test_a_deployment_without_an_owner_is_refused(yatt: Yatt, home: Home, spec_file: Path, project: Path) -> None:
    words = ("--manual", "--name", "toy", "--file", str(project))
    assert yatt("deploy", str(spec_file), *words).code == 0
    document = YAML(typ="safe").load(project.read_text())
    del document["deployments"][0]["parameters"]["owner"]
    project.write_text(yaml_text(document))
    answer = yatt("deploy", str(spec_file), *words)
    refused(answer, "the owner of run toy-1")
    assert "--run toy-1" in answer.err and "another ledger" not in answer.err
    assert yatt("deploy", "--run", "toy-1", *words).code == 0
    with Ledger.open(home.ledger) as ledger:
        assert entry(project, "toy")["parameters"]["owner"] == owner_of(ledger, "toy-1")


def test_an_existing_run_is_deployed_by_name(yatt: Yatt, home: Home, project: Path) -> None:
    run = seed_run(home)
    answer = yatt("deploy", "--run", "latest", "--interval", "1d", "--file", str(project))
    assert answer.out.startswith(f"yatt/{run} drives run {run}")
    refused(yatt("deploy", "--run", "nobody", "--manual", "--file", str(project)), "there is no run 'nobody'")
    refused(yatt("deploy", "--run", run, "--manual", "--set", "seed=1", "--file", str(project)), "--set: needs SPEC")


def test_a_window_is_begun_with_other_parameters(yatt: Yatt, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the server is asserted here; tests/flows/schedule/test_form.py begins a window on a real one."""
    begun: list[tuple[str, dict[str, Any]]] = []

    def begin(name: str, flow: object, parameters: dict[str, Any]) -> str:
        begun.append((name, parameters))
        return "flow-run-1"

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.schedule.deployments.begin", begin)
    given = ("--set", "trainer.optimizer.learning_rate=3e-4", "--iterations", "9", "--for", "2h", "--new-run")
    answer = yatt("window", "nightly", *given)
    assert answer.code == 0 and "flow-run-1" in answer.out
    assert yatt("window", "yatt/nightly").code == 0
    changes = {"trainer.optimizer.learning_rate": 3e-4}
    expected = {"overrides": changes, "iterations": 9, "window": "2h", "run": "new"}
    assert begun == [("nightly", expected), ("nightly", {})]


def test_a_window_that_cannot_begin_is_refused(yatt: Yatt, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(yatt("window", "nightly", "--for", "8 hours"), "did you mean 8h?")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    refused(yatt("window", "nightly"), "start one with `yatt up`")


def test_what_is_recommended_runs_in_the_same_shell(
    yatt: Yatt, spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.schedule.deployments.deployed", lambda name, flow: None)
    monkeypatch.setattr("flows.schedule.deployments.apply", lambda deployment, flow: "1")
    answer = yatt("deploy", str(spec_file), *NIGHTLY)
    assert answer.code == 0 and "yatt window toy\n" in answer.out and "prefect deployment" not in answer.out
