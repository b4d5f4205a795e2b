"""Slices in runs with engines: responses go on under newer weights, and neither a kill nor the machine changes a bit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pytest

from flows.branching.branches import fork, rollback
from flows.reports.audit import verify_run
from flows.run.control_state import ControlState
from ops.queries.experience import Validity, find_iteration, sample_table
from tests.flows.tools import Driver, same_result
from tests.recovery.test_damage import flip
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.experience.carried import CARRIED_FILE
from yatt_core.experience.slicing import SLICES, RoundOutcome, StartedGroup
from yatt_core.keys import sample_seed
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.spec import RunSpec

pytestmark = pytest.mark.timeout(600)
SLICED = (
    "iterations=6",
    "data.prompts_per_iteration=4",
    "rollout.in_flight=9",
    "rollout.max_slices=3",
    "evaluation.every=0",
)
VIRTUAL = ("virtual.yaml", *SLICED, "rollout.slice_tokens=8", "rollout.engine.sigma=1.0")
TORCH = (
    "torch.yaml",
    *SLICED,
    "rollout.slice_tokens=3",
    "algorithm.importance_correction={kind: truncate, cap: 2.0}",
)


def samples_of(driver: Driver, run: str) -> pd.DataFrame:
    """Returns all samples of complete groups, with the iteration in which they completed."""
    files = sorted((driver.home.run_folder(run) / "experience/b000").glob("i*/*/samples.parquet"))
    parts = [pd.read_parquet(file).assign(iteration=int(file.parent.parent.name[1:])) for file in files]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def learnt_groups(driver: Driver, run: str, iterations: int = 6) -> list[tuple[StartedGroup, ...]]:
    with driver.ledger() as ledger:
        rows = [ledger.records.waves(run, 0, i)[-1] for i in range(1, iterations + 1)]
    outcomes = [RoundOutcome.from_json(dict(row.outcome or {})[SLICES]) for row in rows]
    return [outcome.learnt or () for outcome in outcomes]


def learnt_of(driver: Driver, run: str, iterations: int = 6) -> list[list[int]]:
    return [[group.ref.ordinal for group in groups] for groups in learnt_groups(driver, run, iterations)]


def require_drawn_lengths(driver: Driver, run: str, groups: Iterable[StartedGroup]) -> None:
    """Fails unless each response is as long as a virtual engine makes it if nobody stops it, by its seed and its prompt alone."""
    samples = samples_of(driver, run).drop_duplicates("prompt_ordinal").set_index("prompt_ordinal")
    with driver.ledger() as ledger:
        spec = RunSpec.model_validate(ledger.runs.revision(run).spec)
    settings = spec.rollout.engine
    assert settings.kind == "virtual"
    engine = VirtualRolloutEngine(settings, spec.seed)
    engine.begin_update(0)
    engine.take_digest("")
    for group in groups:
        count = len(group.lengths)
        seeds = [sample_seed(spec.seed, 0, group.iteration, group.ref.ordinal, number) for number in range(count)]
        request = GenerateRequest(
            prompts=[np.array(samples.loc[group.ref.ordinal, "prompt_tokens"], np.int32)],
            seeds=np.array([seeds], np.uint64),
            max_new_tokens=spec.rollout.max_new_tokens,
            stop_tokens=(0,),
            weight_version=0,
            drawn=np.zeros(1, np.int32),
        )
        assert group.lengths == tuple(engine.answer(request).lengths.tolist())


def test_responses_go_on_under_newer_weights_until_they_are_learnt_from(driver: Driver) -> None:
    run = driver.create(*VIRTUAL, "checkpoints.keep=9", "retention.experience=all", "controllers.count=2")
    driver.drive(run)
    learnt = learnt_of(driver, run)
    assert sorted(ordinal for groups in learnt for ordinal in groups) == list(range(24))
    samples = samples_of(driver, run)
    assert sorted(samples["prompt_ordinal"].unique()) == list(range(24))
    require_drawn_lengths(driver, run, (group for groups in learnt_groups(driver, run) for group in groups))
    for _, row in samples.iterrows():
        versions = list(row["stretch_versions"])
        assert versions == sorted(versions) and versions[-1] <= row["iteration"] - 1
        assert sum(row["stretch_tokens"]) == len(row["response_tokens"]) == len(row["log_probs_sampler"])
        assert versions[-1] - versions[0] < 3
    assert samples["stretch_versions"].map(lambda versions: len(set(versions))).max() > 1, "no response crosses a slice"
    with driver.ledger() as ledger:
        stale = dict(ledger.metrics.history(run, "staleness/max"))
        lengths = dict(ledger.metrics.history(run, "length/response_mean"))
        commit = ledger.commits.at(run, 3)
    own = samples.set_index("prompt_ordinal")
    for iteration, groups in enumerate(learnt, start=1):
        rows = own.loc[groups]
        assert stale[iteration] == iteration - 1 - min(versions[0] for versions in rows["stretch_versions"])
        assert lengths[iteration] == pytest.approx(rows["response_tokens"].map(len).mean())
    assert commit is not None and ControlState.from_json(commit.state).carried
    folder = driver.home.run_folder(run)
    with driver.ledger() as ledger:
        report = verify_run(ledger, run, folder, None)
        tables = [sample_table(ledger, find_iteration(ledger, driver.home, run, i)) for i in range(1, 7)]
    assert report.disagreement is None, report
    for table, groups in zip(tables, learnt, strict=True):
        for row in table.rows.select(["prompt_ordinal", "validity"]).to_pylist():
            expected = Validity.USED if row["prompt_ordinal"] in groups else Validity.WAITING
            assert row["validity"] == expected


@pytest.mark.verify
def test_killed_and_damaged_it_ends_with_the_same_bits_on_other_controllers_and_instances(driver: Driver) -> None:
    quiet = driver.create(*VIRTUAL)
    driver.drive(quiet)
    struck = driver.create(*VIRTUAL, "controllers.count=3", "rollout.engine.instances=2", "checkpoints.every=2")
    for place in ("collect:2", "prepare:3", "learn:3"):
        driver.drive_until_killed(struck, place)
    driver.end_actors(struck)
    for place in ("sync:4", "learn:5"):
        driver.drive_until_killed(struck, place)
    folder = driver.home.run_folder(struck)
    with driver.ledger() as ledger:
        rows = [row for i in (3, 4) for row in ledger.records.shards(struck, 0, i)]
    for row in rows:
        flip(folder / row.folder / CARRIED_FILE)
    output = driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet)), output


@pytest.mark.verify
@pytest.mark.parametrize("lag", [0, 1])
def test_on_real_engines_it_ends_with_the_same_bits_wherever_it_is_killed(driver: Driver, lag: int) -> None:
    """Its actors are lost half-way, so that other engines and ranks continue, on other controllers and instances."""
    spec = (*TORCH, f"asynchrony.lag={lag}")
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec, "controllers.count=3", "rollout.engine.instances=3")
    for place in ("collect:1", "prepare:2", "learn:2"):
        driver.drive_until_killed(struck, place)
    driver.end_actors(struck)
    for place in (f"collect_ahead:{3 + lag}" if lag else "collect:4", "sync:4", "learn:5"):
        driver.drive_until_killed(struck, place)
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))


@pytest.mark.verify
def test_the_number_of_controllers_and_instances_changes_no_bit(driver: Driver) -> None:
    runs = [
        driver.create(*TORCH, f"controllers.count={controllers}", f"rollout.engine.instances={instances}")
        for controllers, instances in ((1, 1), (2, 3), (4, 2))
    ]
    for run in runs:
        driver.drive(run)
    first, *others = (driver.results(run) for run in runs)
    assert all(same_result(first, other) for other in others)


@pytest.mark.verify
def test_forks_and_rollbacks_replay_updates_that_learnt_from_earlier_iterations(driver: Driver) -> None:
    """From checkpoint 3, updates 4 and 5 are replayed: each must give the fingerprint of its commit."""
    run = driver.create(*VIRTUAL, "checkpoints.every=3", "checkpoints.keep=9")
    driver.drive(run)
    with driver.ledger() as ledger:
        rows = [ledger.records.waves(run, 0, i)[-1] for i in (4, 5)]
    outcomes = [RoundOutcome.from_json(dict(row.outcome or {})[SLICES]) for row in rows]
    sealed = {group.sealed.iteration for one in outcomes for group in one.learnt or () if group.sealed}
    assert min(sealed) <= 3, "nothing that is replayed was sealed before the checkpoint"
    made = fork(driver.home, run, 5, ["name=heir"]).run
    driver.drive(made)
    rollback(driver.home, run, 5)
    driver.drive(run)
    for name in (made, run):
        with driver.ledger() as ledger:
            assert ledger.runs.find(name).iteration == 6
            assert ledger.events.verify(name) is None
