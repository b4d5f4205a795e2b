"""A tail in runs with engines: what is behind an iteration's end is drawn again, and no kill and no machine changes a bit."""

from __future__ import annotations

import numpy as np
import pytest

from flows.reports.audit import verify_run
from ops.queries.experience import Validity, find_iteration, sample_table
from tests.flows.runs.test_sliced_runs import learnt_groups, learnt_of, require_drawn_lengths, samples_of
from tests.flows.tools import Driver, same_result

pytestmark = pytest.mark.timeout(600)
TAIL = ("iterations=6", "data.prompts_per_iteration=4", "evaluation.every=0")
VIRTUAL = (
    "virtual.yaml",
    *TAIL,
    "rollout.tail={factor: 1.5, step_tokens: 16, max_iterations: 3}",
    "rollout.engine.sigma=1.0",
)
TORCH = (
    "torch.yaml",
    *TAIL,
    "rollout.tail={factor: 2.0, step_tokens: 4, max_iterations: 3}",
    "algorithm.importance_correction={kind: truncate, cap: 2.0}",
)


@pytest.mark.verify
def test_an_iteration_ends_at_a_token_and_every_sample_is_learnt_from_once(driver: Driver) -> None:
    run = driver.create(*VIRTUAL, "checkpoints.keep=9", "retention.experience=all", "controllers.count=2")
    driver.drive(run)
    learnt = learnt_of(driver, run)
    assert sorted(ordinal for groups in learnt for ordinal in groups) == list(range(24))
    samples = samples_of(driver, run)
    assert samples.duplicated(["prompt_ordinal", "sample"]).any(), "no group was complete behind an iteration's end"
    with driver.ledger() as ledger:
        report = verify_run(ledger, run, driver.home.run_folder(run), None)
        tables = [sample_table(ledger, find_iteration(ledger, driver.home, run, i)) for i in range(1, 7)]
        lengths = [value for _, value in ledger.metrics.history(run, "length/response_mean")]
        bias = [value for _, value in ledger.metrics.history(run, "tail/length_bias")]
        wasted = [value for _, value in ledger.metrics.history(run, "tail/thrown_away_tokens")]
    assert report.disagreement is None, report
    rows = [row for table in tables for row in table.rows.select(["prompt_ordinal", "sample", "validity"]).to_pylist()]
    used = [
        (row["prompt_ordinal"], row["sample"]) for row in rows if row["validity"] in (Validity.USED, Validity.WAITING)
    ]
    assert len(set(used)) == len(used), "what was thrown away is not shown as learnt from"
    assert any(row["validity"] == Validity.THROWN_AWAY for row in rows)
    groups = learnt_groups(driver, run)
    require_drawn_lengths(driver, run, (group for each in groups for group in each))
    assert lengths == [pytest.approx(np.mean([group.lengths for group in each])) for each in groups]
    assert bias[-1] == 1.0 and bias[0] < 1.0, "the long ones are late, and none is lost"
    assert sum(wasted) > 0


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
    # Responses of this model seldom end by themselves, so that many groups complete at once, and some iterations draw nothing.
    for place in (f"collect_ahead:{3 + lag}" if lag else "prepare:4", "sync:4", "learn:5"):
        driver.drive_until_killed(struck, place)
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))
    with driver.ledger() as ledger:
        assert max(value for _, value in ledger.metrics.history(quiet, "staleness/max")) > lag, "no response went on"
