"""What this version could not go on with is said of sweeps, soups, the queue, deployments, pipelines and suites."""

from __future__ import annotations

from pathlib import Path

from db.core.holder import this_process
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from db.write.pipelines import DONE, FINISHED, NewPipeline
from db.write.queueing import Submission
from db.write.suites import SuiteRow
from flows.queueing.pools_file import pools_file, write_first_pools
from flows.run.home import Home
from flows.schedule.window_record import record_new_run
from flows.soups.record import SOUP, create_soup
from flows.soups.spec import parse_soup
from flows.sweeps.record import SWEEP, WINNER, create_sweep
from flows.sweeps.spec import parse_sweep
from ops.preflight.upgrade import pending_changes
from tests.flows.soups.support import RUN
from tests.flows.soups.support import SOUP as SOUP_TREE
from tests.flows.sweeps.support import SWEEP_TREE
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.spec import override_spec, parse_spec
from yatt_core.spec.reading.documents import yaml_text

UNREAD = {"unheard_of": 1}
TRAIN = {"kind": "train", "spec": "run.yaml"}
Said = list[tuple[str, str | None, bool]]


def said_of(home: Home, *kinds: str) -> Said:
    """Returns what, of which run, and whether it blocks, for changes of some kinds; all of them name the key."""
    found = [change for change in pending_changes(home) if change.what.split()[0] in kinds]
    assert all("unheard_of" in change.effect for change in found), found
    return [(change.what, change.run, change.blocks) for change in found]


def unreadable(ledger: Ledger) -> str:
    """Creates a run whose spec this version does not read."""
    return ledger.runs.create("later", toy_spec().model_dump(mode="json") | UNREAD, "digest", 4).id


def test_sweeps_and_soups_that_have_not_ended(home: Home) -> None:
    spec = parse_spec(RUN, "run")
    create_sweep(home, parse_sweep(SWEEP_TREE, "sweep"), spec, "ann")
    create_soup(home, parse_soup(SOUP_TREE, "soup"), spec, "ann")
    with Ledger.open(home.ledger) as ledger:
        sweep, ended, soup = (ledger.runs.create("x", spec.model_dump(mode="json"), "digest", 4).id for _ in range(3))
        for run, kind in ((sweep, SWEEP.kind), (ended, SWEEP.kind), (soup, SOUP.kind)):
            ledger.events.append(run, kind, {"spec": UNREAD})
        ledger.events.append(ended, WINNER, {"trial": None})
    assert said_of(home, "sweep", "soup") == [("sweep", sweep, True), ("soup", soup, True)]


def test_the_queue(home: Home) -> None:
    write_first_pools(home, 0, 2)
    with Ledger.open(home.ledger) as ledger:
        for run in (seed_run(home), later := unreadable(ledger)):
            ledger.submissions.submit(run, Submission(("main",), "ann", "", 0, 1), "ann")
    assert said_of(home, "queue") == [("queue", later, True)]
    pools_file(home).write_text(yaml_text({"pools": {"main": {"devices": 2}}, **UNREAD}))
    assert said_of(home, "queue") == [("queue", None, True), ("queue", later, True)]


def test_deployments_that_make_new_runs(home: Home) -> None:
    """One continues its run, one is as it was, one has a model that this version refuses, and one a spec that it cannot read."""
    continued = seed_run(home)
    same = seed_run(home)
    refused = seed_run(home, spec=override_spec(toy_spec(), ["model.architecture=qwen2"], "toy"))
    with Ledger.open(home.ledger) as ledger:
        later = unreadable(ledger)
        ledger.events.append(continued, "window_left", {"flow_run": "a", "why": "it is over"})
        for run in (same, refused, later):
            record_new_run(ledger, run, "a", "toy-9")
    found = {change.run: change for change in pending_changes(home) if change.what == "deployment"}
    assert list(found) == sorted([refused, later])
    assert "with a warning" in found[refused].effect and "expected qwen3 or llama" in found[refused].effect
    assert "unheard_of" in found[later].effect
    assert not any(change.blocks for change in found.values())


def test_pipelines_that_have_not_finished_and_deployed_ones(home: Home, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml_text({**RUN, **UNREAD}))
    (tmp_path / "suite.yaml").write_text(yaml_text(UNREAD))
    jobs = {"first": TRAIN, "second": TRAIN, "measured": {"kind": "evaluate", "of": "first", "suite": "suite.yaml"}}
    home.folder.mkdir()
    (tmp_path / "line.yaml").write_text(yaml_text({"name": "nightly", "jobs": {"only": TRAIN}}))
    with Ledger.open(home.ledger) as ledger:

        def pipeline(name: str, tree: dict[str, object]) -> str:
            return ledger.pipelines.create(NewPipeline(name, name, {"name": name, **tree}, str(tmp_path), "ann")).id

        left = pipeline("left", {"jobs": jobs})
        odd = pipeline("odd", UNREAD)
        over = pipeline("over", UNREAD)
        fence = ledger.leases.take(of_pipeline(left), this_process("pipeline"), 60)
        ledger.pipelines.end(fence, ledger.pipelines.begin(fence, "first", "key", {}, {}), DONE, {})
        ledger.pipelines.release(ledger.leases.take(of_pipeline(over), this_process("pipeline"), 60), FINISHED, "")
        ledger.pipeline_triggers.deploy("nightly", str(tmp_path / "line.yaml"), "ann")
    found = said_of(home, "pipeline", "deployed")
    assert found.count((f"pipeline {left}", None, True)) == 2, "the second job and the evaluation, but not what is done"
    assert (f"pipeline {odd}", None, True) in found
    assert ("deployed pipeline nightly", None, False) in found and len(found) == 4


def test_suites_of_records_and_of_specs(home: Home, tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(yaml_text(UNREAD))
    path = tmp_path / "suite.yaml"
    run = seed_run(home)
    waiting = seed_run(home, spec=override_spec(toy_spec(), [f"evaluation.suites=[{{path: '{path}'}}]"], "toy"))
    with Ledger.open(home.ledger) as ledger:
        for weights in ("w1", "w2"):
            row = SuiteRow(run, "maths", "d", {"name": "maths", **UNREAD}, 0, 1, weights, {}, (), "ann", 1.0)
            ledger.suites.add(row)
    assert said_of(home, "suite") == [("suite maths", run, False), ("suite suite.yaml", waiting, False)]
