"""The built-in workloads: each says what its runs have, and neither flow nor engine has a part for what it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.reports.audit import verify_run
from flows.run.results import run_results
from tests.engines.train.preferred import KINDS, Trained, preferred_spec
from tests.engines.train.support import make_spec
from tests.flows.simulated import Simulation
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.in_process import OwnRun
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.base.engine import WorkloadTrainEngine
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext, SendsWeights
from yatt_core.protocols.receipts import RowsTask
from yatt_core.run_actors.actor_registry import ENDPOINT, ROLLOUT, TRAINER
from yatt_core.run_actors.controller_layout import CONTROLLER
from yatt_core.run_actors.process_use import process_names
from yatt_core.spec import RunSpec, load_spec
from yatt_core.workload_kinds import OF_CLASSES, OF_LANGUAGE, OF_ROWS, OF_SAMPLED, WorkloadParts, parts_in
from yatt_core.workloads.trained import Accumulates, Evaluates, FineTunes, FreesMemory

DRAWING = Path(__file__).parent / "diffusion" / "drawing.yaml"
SAMPLED = "workload.sampled_by=rollout"
EVERY = ("evaluation.every=1", "checkpoints.every=1")
Driven = OwnRun | Simulation
COMMON = ("prepare", "learn", "evaluate", "checkpoint", "commit")


def rows_file(folder: Path, kind: str | None = None) -> Path:
    """Writes a spec that learns from rows of preferences, with a `workload.kind` or, as earlier versions, without."""
    spec = preferred_spec(folder, KINDS["dpo"], rows=60, iterations=3)
    tree: dict[str, Any] = spec.model_dump(
        mode="json", exclude_defaults=True, include={"name", "iterations", "model", "data"}
    )
    tree |= {
        "rollout": {"max_new_tokens": 8},
        "objective": {"kind": "dpo", "mini_batches": 2},
        "checkpoints": {"every": 2},
    }
    tree["data"]["sources"] = [{"kind": "jsonl", "path": str(folder / "rows.jsonl"), "answer_field": "answer"}]
    tree["data"]["prompts_per_iteration"] = 16
    tree["model"]["kind"] = "from_config"
    if kind is not None:
        tree["workload"] = {"kind": kind}
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(tree))
    return path


def driven_rows(folder: Path) -> Driven:
    run = OwnRun.of(folder, rows_file(folder / "data", "rows"), *EVERY)
    run.drive(until=1)
    return run


def driven_drawing(folder: Path, *more: str) -> Driven:
    run = OwnRun.of(folder, DRAWING, *EVERY, *more)
    run.drive(until=1)
    return run


def driven_language(folder: Path) -> Driven:
    simulation = Simulation.of(folder, *EVERY)
    simulation.drive(until=1)
    return simulation


@dataclass(frozen=True)
class Case:
    """A built-in workload.

    has: what it must declare.
    phases: those of an iteration, and of iteration 0.
    processes: the roles of the processes that a run of it has beside the driver.
    protocols: what the trainer's engine can ask of it, beyond what every workload has.
    drive: drives a run in a folder to iteration 1.
    """

    spec: Callable[[Path], RunSpec]
    has: WorkloadParts
    phases: tuple[str, ...]
    first: tuple[str, ...]
    processes: frozenset[str]
    protocols: frozenset[type[Any]]
    drive: Callable[[Path], Driven]


OF_POLICIES = frozenset({FineTunes, SendsWeights, FreesMemory})
CASES = {
    "language": Case(
        spec=lambda folder: make_spec(),
        has=OF_LANGUAGE,
        phases=("place", "collect", "prepare", "learn", "sync", "evaluate", "checkpoint", "commit"),
        first=("start", "sft", "sync", "evaluate", "commit_start"),
        processes=frozenset({TRAINER, ROLLOUT, CONTROLLER}),
        protocols=OF_POLICIES | {Accumulates},
        drive=driven_language,
    ),
    "rows": Case(
        spec=lambda folder: load_spec(rows_file(folder, "rows")),
        has=OF_ROWS,
        phases=COMMON,
        first=("start", "sft", "evaluate", "commit_start"),
        processes=frozenset({TRAINER}),
        protocols=OF_POLICIES | {Evaluates},
        drive=driven_rows,
    ),
    "diffusion": Case(
        spec=lambda folder: load_spec(DRAWING),
        has=OF_CLASSES,
        phases=COMMON,
        first=("start", "sft", "evaluate", "commit_start"),
        processes=frozenset({TRAINER}),
        protocols=frozenset({Evaluates}),
        drive=driven_drawing,
    ),
    "diffusion with samplers": Case(
        spec=lambda folder: load_spec(DRAWING, [SAMPLED]),
        has=OF_SAMPLED,
        phases=("collect", "prepare", "learn", "sync", "evaluate", "checkpoint", "commit"),
        first=("start", "sft", "sync", "evaluate", "commit_start"),
        processes=frozenset({TRAINER, ROLLOUT}),
        protocols=frozenset({Evaluates, SendsWeights}),
        drive=lambda folder: driven_drawing(folder, SAMPLED),
    ),
}
EACH = [pytest.param(name, marks=NEEDS_DIFFUSERS if name.startswith("diffusion") else ()) for name in CASES]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", EACH)
def test_a_workload_says_what_its_runs_have(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    spec = case.spec(tmp_path)
    assert spec.has == case.has == parts_in(spec.model_dump(mode="json"))
    assert ("place" in case.phases, "sync" in case.phases) == (spec.has.controllers, spec.has.sync)
    assert spec.samples_responses == spec.has.controllers
    roles = {process.partition("-")[0] for process in process_names(spec)} - {"driver"}
    assert roles == case.processes
    assert spec.has.judges or ENDPOINT not in roles


@pytest.mark.parametrize("name", EACH)
def test_the_flow_has_no_phase_for_what_a_workload_lacks(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    driven = case.drive(tmp_path)
    with driven.ledger() as ledger:
        for iteration, expected in ((0, case.first), (1, case.phases)):
            assert set(ledger.phases.seconds(driven.run, 0, iteration)) == set(expected)


@pytest.mark.parametrize("name", EACH)
def test_the_engine_asks_a_workload_for_nothing_that_it_lacks(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    spec = case.spec(tmp_path)
    engine = build_train_engine(spec, RankContext(tmp_path, tmp_path / "inputs", "", 0))
    assert isinstance(engine, WorkloadTrainEngine), "one engine serves every workload"
    known = (Accumulates, Evaluates, FineTunes, FreesMemory, SendsWeights)
    assert {each for each in known if isinstance(engine.workload, each)} == case.protocols
    assert engine.in_step == (SendsWeights not in case.protocols)
    assert engine.copies_alone == spec.has.language_model, "ranks of a class may exchange something for their state"
    if SendsWeights not in case.protocols:
        with pytest.raises(InfrastructureError, match="has no rollout engines"):
            engine.stream_weights()
    engine.offload()
    engine.reload()
    assert engine.version == -1 and engine.applied is None
    with pytest.raises(InfrastructureError):
        engine.freeze_state()


def test_a_policy_that_samples_is_evaluated_by_its_controllers(tmp_path: Path) -> None:
    spec = preferred_spec(tmp_path, KINDS["dpo"], rows=60)
    trained = Trained(spec, tmp_path / "run")
    assert isinstance(trained.engine, WorkloadTrainEngine)
    assert trained.evaluate(), "rows are evaluated by the trainer"
    sampling = make_spec(rollout={"max_new_tokens": 8})
    context = RankContext(tmp_path, tmp_path / "inputs", str(trained.model), 0)
    engine = build_train_engine(sampling, context)
    engine.connect(0, 1, "")
    engine.initialise()
    with pytest.raises(ConfigurationError, match="evaluated by its controllers"):
        engine.evaluate(RowsTask(WorkKey("r", 0, 0, "evaluate"), 1))


def test_rows_are_a_kind_that_specs_without_one_have_too(tmp_path: Path) -> None:
    """Learns the same, killed and resumed, as a spec of an earlier version that says `language`, or nothing."""
    results = []
    for number, kind in enumerate(("rows", "language", None)):
        run = OwnRun.of(tmp_path / str(number), rows_file(tmp_path / "data", kind))
        if kind == "rows":
            for killed_at in ("after prepare:1", "after learn:2", "commit:3"):
                assert run.drive(killed_at, cold=True) is None
        outcome = run.drive(cold=kind == "rows")
        assert outcome is not None and outcome.state == "completed"
        with run.ledger() as ledger:
            results.append(run_results(ledger, run.run))
            report = verify_run(ledger, run.run, run.folder, None)
        assert report.sound, report.disagreement
    assert results[0].weights_digest is not None
    assert len({(found.weights_digest, found.metrics_digest) for found in results}) == 1


def test_a_spec_of_kind_rows_needs_an_objective_over_rows(tmp_path: Path) -> None:
    path = rows_file(tmp_path, "rows")
    for given in ("objective=null", "objective.pairs=sampled"):
        with pytest.raises(
            ConfigurationError, match=r"workload\.kind: rows learns from the rows of the data by an objective"
        ):
            load_spec(path, [given])


@pytest.mark.parametrize("objective", KINDS.values(), ids=KINDS)
def test_a_spec_of_plain_values_says_the_same(objective: dict[str, Any], tmp_path: Path) -> None:
    spec = preferred_spec(tmp_path, objective, rows=6)
    assert parts_in(spec.model_dump(mode="json")) == spec.has == OF_ROWS


def test_pairs_that_the_policy_samples_are_no_rows() -> None:
    spec = make_spec(objective={"kind": "dpo", "pairs": "sampled"})
    assert parts_in(spec.model_dump(mode="json")) == spec.has == OF_LANGUAGE
