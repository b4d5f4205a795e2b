"""Our side: `yatt train` with the quickstart in a home of its own, and what its ledger and its profile say.

Consumes a model's folder and the number of iterations. Produces a `Measured`. All of a run takes part: Prefect, Ray, controllers,
ledger, MLflow, evaluation, checkpoints.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import trained
from benchmarks.peer_run.measured import (
    CHECKPOINT,
    DATA,
    EVALUATE,
    GENERATE,
    ORCHESTRATION,
    OTHER,
    PARTS,
    REWARDS,
    UPDATE,
    WEIGHTS,
    Measured,
    Point,
)
from db.ledger import Ledger
from flows.reports.profile import Profile
from flows.run.home import Home
from flows.run.results import ACCURACY
from ops.queries.profile import run_profile
from yatt_core import spent_time
from yatt_core.spec import RunSpec, load_spec

SPEC = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
WHOLE_PHASES = {"evaluate": EVALUATE, "checkpoint": CHECKPOINT}
"""Phases that are one part, whatever their time goes into."""
ENGINE_PHASES = {"collect": GENERATE, "prepare": UPDATE, "learn": UPDATE}
"""What engines compute in the other phases."""
KINDS = {
    spent_time.WEIGHTS: WEIGHTS,
    spent_time.REWARDS: REWARDS,
    spent_time.DATA: DATA,
    spent_time.LEDGER: ORCHESTRATION,
    spent_time.PREFECT: ORCHESTRATION,
    spent_time.RAY: ORCHESTRATION,
    spent_time.WAITING: ORCHESTRATION,
}


def changes_of(start: Path, iterations: int, seed: int) -> list[str]:
    """Returns what differs from the quickstart: the run begins with the weights in a folder, in place of its own SFT."""
    model = json.dumps({"kind": "folder", "path": str(start)})
    return [f"model={model}", "sft=null", f"iterations={iterations}", f"seed={seed}"]


def spec_of(start: Path, iterations: int, seed: int) -> RunSpec:
    """Returns the spec of our runs."""
    return load_spec(SPEC, changes_of(start, iterations, seed))


def fine_tune(folder: Path, seed: int) -> None:
    """Writes the weights with which both sides begin: the quickstart's, after its supervised fine-tuning."""
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        home = Path(name)
        yatt(home, "train", str(SPEC), "--until", "0", "--set", f"seed={seed}")
        yatt(home, "export", "latest", "--to", str(folder))


def yatt(home: Path, *words: str) -> None:
    """Runs a command in a home."""
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(home), *words]
    subprocess.run(command, stdout=sys.stderr, check=True)


def train(start: Path, iterations: int, seed: int) -> Measured:
    """Trains a run in an empty home and returns what was measured."""
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        home = Path(name)
        began = time.time()
        results = trained(home, SPEC, changes_of(start, iterations, seed))
        seconds = time.time() - began
        return measured_of(Home(home), results["run"], began, seconds)


def measured_of(home: Home, run: str, began: float, seconds: float) -> Measured:
    """Returns what the ledger and the profile say about a run.

    began: when its command was started, in seconds since 1970.
    seconds: how long the command took.
    """
    with Ledger.open(home.ledger) as ledger:
        iterations = ledger.runs.find(run).iteration
        accuracies = ledger.metrics.history(run, ACCURACY)
        known = {iteration: committed_at(ledger, run, iteration) - began for iteration, _ in accuracies}
        profile = run_profile(ledger=ledger, home=home, run=run, iteration=None, last=iterations)
    return Measured(
        iterations=iterations,
        begin=known[0],
        end=known[iterations],
        seconds=seconds,
        accuracies=[Point(known[iteration], accuracy) for iteration, accuracy in accuracies],
        parts=parts_of(profile),
    )


def committed_at(ledger: Ledger, run: str, iteration: int) -> float:
    """Returns when an iteration was committed, in seconds since 1970."""
    commit = ledger.commits.at(run, iteration)
    assert commit is not None, "evaluations are committed with their iterations"
    return commit.committed_at / 1000


def parts_of(profile: Profile) -> dict[str, float]:
    """Returns the seconds of an iteration by part, along its critical path, which add up to its wall time."""
    parts = dict.fromkeys(PARTS, 0.0)
    for step in profile.path:
        if step.phase in WHOLE_PHASES:
            part = WHOLE_PHASES[step.phase]
        elif step.kind == spent_time.ENGINE:
            part = ENGINE_PHASES.get(step.phase, OTHER)
        else:
            part = KINDS.get(step.kind, OTHER)
        parts[part] += step.seconds
    # Differences of equal times leave rounding errors.
    parts[OTHER] += max(0.0, profile.wall - sum(parts.values()))
    return parts
