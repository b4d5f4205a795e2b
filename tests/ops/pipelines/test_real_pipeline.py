"""examples/pipeline with real engines: killed in each job, approved over HTTP, it ends with one champion."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from examples.preferences import preference_rows
from tests.carrier import SECONDS, Carrier
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.spec.reading.documents import read_document, yaml_text

ITERATIONS = {"sft": 12, "reward": 6, "rlhf": 4}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The example with fewer rows and iterations; everything else is as it is."""
    folder = tmp_path / "examples" / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", folder)
    rows = tmp_path / "data" / "preferences.jsonl"
    rows.parent.mkdir()
    rows.write_text("".join(json.dumps(row) + "\n" for row in preference_rows(600)))
    file = folder / "pipeline.yaml"
    tree = read_document(file)
    for job, iterations in ITERATIONS.items():
        smaller = [f"iterations={iterations}", "tracking.enabled=false"]
        tree["jobs"][job]["set"] = [*tree["jobs"][job].get("set", []), *smaller]
    file.write_text(yaml_text(tree))
    return file


class Line(Carrier):
    """The pipeline's commands."""

    def kill_in_run(self, job: str, file: Path) -> None:
        """Kills the pipeline's process and the run's driver while the run of a job learns."""

        def learns(ledger: Ledger) -> bool:
            run = _attempts(ledger).get(job, {}).get("run")
            return run is not None and 0 < ledger.runs.find(run).iteration < ITERATIONS[job]

        self.kill_when(self.start("run", str(file)), learns)
        self.kill_a_driver()
        with Ledger.open(self.home.ledger, migrate=False) as ledger:
            run = ledger.runs.find(_attempts(ledger)[job]["run"])
            assert 0 < run.iteration < ITERATIONS[job], f"{job} was killed while it learned"

    def kill_before_it_is_recorded(self, job: str, *words: str) -> None:
        """Kills the pipeline's process when a job is done, but not recorded as such."""
        command = [sys.executable, "-m", "tests.flows.pipelines.dying_command", job, "--home", str(self.home.folder)]
        done = subprocess.run(
            [*command, "pipeline", *words], cwd=ROOT, env=self._environment, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr

    def yatt(self, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "ops.cli.main", "--home", str(self.home.folder), *words, "-o", "json"]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=True)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    @contextmanager
    def dashboard(self) -> Iterator[str]:
        """Yields the address of a dashboard, as a process of its own."""
        log = self.home.folder / "dashboard.log"
        command = [sys.executable, "-m", "ops.cli.main", "--home", str(self.home.folder), "dashboard", "--port", "0"]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "-o", "json"], cwd=ROOT, env=self._environment, stdout=out, stderr=out
            )
        try:
            wait_until(lambda: "http://" in log.read_text(), 120)
            yield "http://" + log.read_text().partition("http://")[2].split('"')[0].split()[0].rstrip("/")
        finally:
            process.terminate()
            process.wait(60)


def _attempts(ledger: Ledger) -> dict[str, Mapping[str, Any]]:
    newest = ledger.pipelines.newest(limit=1)
    return {name: row.outputs for name, row in ledger.pipelines.jobs(newest[0].id).items()} if newest else {}


def _states(shown: Mapping[str, Any]) -> dict[str, str]:
    return {job["name"]: job["state"] for job in shown["jobs"]}


def _sessions(line: Line) -> dict[str, int]:
    """Returns the number of driver sessions of each run."""
    with Ledger.open(line.home.ledger, migrate=False) as ledger:
        return {run.id: len(ledger.overview.sessions(run.id)) for run in ledger.runs.list()}


def _ask(address: str, token: str, body: Mapping[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.verify
@pytest.mark.timeout(2 * SECONDS)
def test_the_example_killed_in_each_job_and_approved_over_http_ends_with_one_champion(
    tmp_path: Path, file: Path, service_environment: Mapping[str, str]
) -> None:
    line = Line("pipeline", tmp_path / "runs", service_environment)
    for job in ITERATIONS:
        line.kill_in_run(job, file)
    for job in ("rlhf", "evaluation", "gate"):
        line.kill_before_it_is_recorded(job, "run", str(file))
    waiting = line.finish("run", str(file))
    assert waiting["state"] == "waiting" and _states(waiting)["champion"] == "planned"
    assert line.finish("resume", "latest")["state"] == "waiting", "nobody has decided"

    token = line.yatt("token", "create", "ann", "--role", "approver")["token"]
    with line.dashboard() as address:
        answer = _ask(f"{address}/api/v1/approvals/1", token, {"decision": "approve", "why": "it learns"})
    assert answer["approval"]["decided_by"] == "ann"
    line.kill_before_it_is_recorded("champion", "resume", "latest")
    done = line.finish("resume", "latest")
    assert done["state"] == "finished" and set(_states(done).values()) == {"done"}

    with Ledger.open(line.home.ledger, migrate=False) as ledger:
        runs = sorted(run.id for run in ledger.runs.list())
        assert runs == ["letters-reward-1", "letters-rlhf-1", "letters-sft-1"]
        assert {run.id: run.iteration for run in ledger.runs.list()} == {
            f"letters-{job}-1": iterations for job, iterations in ITERATIONS.items()
        }
        champions = [run for run in runs if "champion" in ledger.aliases.pointing(run)]
        assert champions == ["letters-rlhf-1"]
        assert [move.alias for move in ledger.aliases.history("letters-rlhf-1")] == ["champion"]
        assert all(ledger.events.verify(run) is None for run in runs) and len(ledger.approvals.list()) == 1
    before = _sessions(line)
    again = line.finish("run", str(file))
    assert again["pipeline"] == "letters-line-2" and set(_states(again).values()) == {"skipped"}
    assert _sessions(line) == before, "no new run, and no driver"
    assert not list((line.home.folder / "pipelines" / "letters-line-2").glob("*/letters-*")), "no model either"
