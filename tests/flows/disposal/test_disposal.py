"""Archiving and deleting runs that have begun, what is refused, and where the disk goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from db.core.errors import LeaseHeld, RunNotFound
from db.core.holder import this_process
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from db.write.aliases import CheckpointKey
from db.write.pipelines import DONE, FINISHED, WAITING, NewPipeline
from flows.branching.branches import fork
from flows.disposal.archiving import ARCHIVED, archive_run
from flows.disposal.dependents import in_order
from flows.disposal.usage import disk_usage, folder_bytes
from flows.files.retention import PRUNED_EVENT
from flows.run.deletion import delete_run
from flows.run.home import Home
from flows.soups.record import SOUP as SOUP_FAMILY
from flows.soups.record import SoupRecord, create_soup
from flows.soups.spec import parse_soup
from flows.sweeps.record import SWEEP
from tests.flows.run.scenarios import Told
from tests.flows.soups.support import RUN, SOUP
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.errors import ConfigurationError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import checkpoint_folder
from yatt_core.spec import override_spec, parse_spec

COMMITTED = 4


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


@pytest.fixture
def run(home: Home) -> str:
    """Creates a run with checkpoints of 0, 1, 2 and 3 of four iterations, and a Prefect database of its own."""
    name = seed_run(home, committed=COMMITTED)
    folder = home.run_folder(name)
    (folder / INPUTS).mkdir()
    (folder / "prefect").mkdir()
    (folder / "prefect" / "prefect.db").write_bytes(b"p" * 100_000)
    for iteration in range(COMMITTED):
        seed_checkpoint(home, name, iteration)
    return name


def restored(home: Home, run: str) -> list[int]:
    with Ledger.open(home.ledger) as ledger:
        return [row.iteration for row in ledger.records.own_checkpoints(run, "kept")]


def test_an_archived_run_keeps_its_results_and_can_go_on(home: Home, run: str) -> None:
    folder = home.run_folder(run)
    with Ledger.open(home.ledger) as ledger:
        before = ledger.commits.latest(run)
        done = archive_run(home, ledger, run, "ann", "old")
        assert (sorted(done.checkpoints), done.experience) == ([1, 2], (1, 2, 3))
        assert done.freed >= 100_000
        assert ledger.commits.latest(run) == before
        assert ledger.events.verify(run) is None
        (link,) = ledger.events.of_kind(run, ARCHIVED)
        assert ledger.events.of_kind(run, PRUNED_EVENT), "what is deleted is recorded before it is"
        assert ledger.leases.holders() == {}
        again = archive_run(home, ledger, run, "ann", "")
    assert (link.body["by"], link.body["why"], link.body["experience"]) == ("ann", "old", 3)
    assert (again.checkpoints, again.experience) == ((), ())
    assert sorted(restored(home, run)) == [0, 3]
    assert not (folder / "prefect").exists() and (folder / "logs").exists()
    assert not (folder / checkpoint_folder(0, 1, 1)).exists()
    made = fork(home, run, COMMITTED, ["iterations=9"])
    assert (made.checkpoint, made.replayed) == (3, 1), "what a resumption replays is kept"


def test_what_is_driven_queued_or_never_began_is_not_archived(home: Home, run: str) -> None:
    with Ledger.open(home.ledger) as ledger:
        idle = ledger.runs.create("toy", toy_spec().model_dump(mode="json"), "digest", 4).id
        with pytest.raises(ConfigurationError, match=f"`yatt rm {idle}`"):
            archive_run(home, ledger, idle, "ann", "")
        fence = ledger.leases.acquire(run, this_process("driver"), 60)
        with pytest.raises(LeaseHeld):
            archive_run(home, ledger, run, "ann", "")
        ledger.leases.release(fence)
    assert sorted(restored(home, run)) == [0, 1, 2, 3]


def test_a_run_that_has_begun_is_deleted_with_a_record_of_what_it_was(home: Home, run: str, tmp_path: Path) -> None:
    told = Told(tmp_path / "told")
    with pytest.raises(ConfigurationError, match="`yatt delete` deletes one that has begun"):
        delete_run(home, run, "ann", "", told)
    done = delete_run(home, run, "ann", "old", told, begun=True)
    assert (done.run, done.left) == (run, ())
    assert not home.run_folder(run).exists()
    with Ledger.open(home.ledger) as ledger:
        record = ledger.deletions.find(run)
        with pytest.raises(RunNotFound):
            ledger.runs.find(run)
    assert record is not None
    last = record.links[-1]
    assert (last["kind"], last["body"]["by"], last["body"]["why"]) == ("deleted", "ann", "old")
    removed = last["body"]["removed"]
    assert (removed["iteration"], sorted(removed["checkpoints"])) == (COMMITTED, [0, 1, 2, 3])
    assert removed["weights_digest"] == f"weights {COMMITTED}"
    assert seed_run(home) != run, "its number is never used again"


def test_forks_and_sweeps_are_deleted_together_only(home: Home, run: str, tmp_path: Path) -> None:
    tags = [f"tracking.tags.sweep={run}", "tracking.tags.sweep_member=trial"]
    trial = fork(home, run, 2, tags).run
    told = Told(tmp_path / "told")
    with Ledger.open(home.ledger) as ledger:
        with pytest.raises(ConfigurationError, match=f"run {trial} is a fork of it"):
            in_order(home, ledger, [run])
        with pytest.raises(ConfigurationError, match=f"it belongs to the sweep of run {run}"):
            in_order(home, ledger, [trial])
        ordered = in_order(home, ledger, [run, trial])
    assert ordered == [trial, run]
    with pytest.raises(ConfigurationError, match=f"run {trial} is a fork of it"):
        delete_run(home, run, "ann", "", told, begun=True)
    for name in ordered:
        assert delete_run(home, name, "ann", "", told, begun=True).left == ()
    with Ledger.open(home.ledger) as ledger:
        assert not ledger.runs.list()


def test_a_record_is_not_deleted_without_its_members_whatever_these_are_forks_of(home: Home, run: str) -> None:
    spec = toy_spec().model_dump(mode="json")
    tags = {"sweep": run, "sweep_member": "trial/0/7"}
    spec["tracking"]["tags"] = tags
    with Ledger.open(home.ledger) as ledger:
        ledger.events.append(run, SWEEP.kind, {"spec": {}})
        trials = [ledger.runs.create("toy", spec, "digest", 4).id for _ in range(2)]
        with pytest.raises(ConfigurationError, match=f"keeps the record of a sweep, to which {trials[0]}, {trials[1]}"):
            in_order(home, ledger, [run])
        with pytest.raises(ConfigurationError, match=f"to which {trials[1]} belong"):
            in_order(home, ledger, [run, trials[0]])
        assert in_order(home, ledger, [run, *trials]) == [trials[1], trials[0], run]


def test_an_archived_run_keeps_the_checkpoints_that_others_need(home: Home, run: str, tmp_path: Path) -> None:
    """Iteration 1 is named by a spec, and 2 by a pipeline that waits for an approval."""
    folder = home.run_folder(run)
    spec = toy_spec().model_dump(mode="json")
    with Ledger.open(home.ledger) as ledger:
        rows = {row.iteration: row for row in ledger.records.own_checkpoints(run, "kept")}
        spec["model"] = {"kind": "folder", "path": f"{folder / rows[1].folder}/weights"}
        user = ledger.runs.create("user", spec, "digest", 4).id
        line = ledger.pipelines.create(NewPipeline("line", "digest", {"name": "line"}, str(tmp_path), "ann"))
        fence = ledger.leases.take(of_pipeline(line.id), this_process("pipeline"), 60)
        attempt = ledger.pipelines.begin(fence, "train", "key", {}, {})
        outputs = {"run": run, "iteration": 2, "checkpoint": str(folder / rows[2].folder)}
        ledger.pipelines.end(fence, attempt, DONE, outputs)
        ledger.pipelines.release(fence, WAITING, "its gate")
        assert archive_run(home, ledger, run, "ann", "").checkpoints == ()
        fence = ledger.leases.take(of_pipeline(line.id), this_process("pipeline"), 60)
        ledger.pipelines.release(fence, FINISHED, "")
        assert archive_run(home, ledger, run, "ann", "").checkpoints == (2,)
        assert user != run and sorted(restored(home, run)) == [0, 1, 3]


def test_an_archived_run_of_a_soup_keeps_what_is_merged(home: Home, tmp_path: Path) -> None:
    run_spec = parse_spec({**RUN, "iterations": COMMITTED}, "run")
    soup = create_soup(home, parse_soup(SOUP, "soup"), run_spec, "ann")
    backbone = seed_run(home, COMMITTED, override_spec(run_spec, SOUP_FAMILY.tags(soup, "0.6/brief"), "run"))
    (home.run_folder(backbone) / INPUTS).mkdir()
    for iteration in range(COMMITTED):
        seed_checkpoint(home, backbone, iteration)
    with Ledger.open(home.ledger) as ledger:
        plan = SoupRecord(ledger, soup).plan
        assert (plan.search_at, plan.target) == (1, COMMITTED)
        assert archive_run(home, ledger, backbone, "ann", "").checkpoints == (2,)


def test_aliases_and_files_that_others_name_are_said(home: Home, run: str) -> None:
    model = home.run_folder(run) / "exports" / "model"
    spec = toy_spec().model_dump(mode="json")
    spec["model"] = {"kind": "folder", "path": str(model)}
    with Ledger.open(home.ledger) as ledger:
        row = ledger.records.own_checkpoints(run, "kept")[0]
        ledger.aliases.promote(run, "champion", CheckpointKey(row.branch, row.iteration, row.term), "ann", "best")
        user = ledger.runs.create("user", spec, "digest", 4).id
        with pytest.raises(ConfigurationError) as refused:
            in_order(home, ledger, [run])
        said = str(refused.value)
        assert "has the alias champion; --promoted" in said
        assert f"the spec of run {user} names files in its folder" in said
        with pytest.raises(ConfigurationError) as refused:
            in_order(home, ledger, [run], promoted=True)
        assert "champion" not in str(refused.value)
        assert in_order(home, ledger, [run, user], promoted=True) == [user, run]


def test_the_disk_is_counted_by_run_and_kind(home: Home, run: str) -> None:
    heir = fork(home, run, 2).run
    (home.folder / "gone-1").mkdir()
    (home.folder / "gone-1" / "spec.yaml").write_text("name: gone")
    (home.folder / "mlflow.db").write_bytes(b"m" * 8192)
    used = disk_usage(home, [run, heir])
    by_name = {usage.name: usage for usage in used.runs}
    own = by_name[run]
    assert used.runs[0] is own, "largest first"
    assert own.kinds["prefect"] >= 100_000 and own.kinds["experience"] > 0 and own.kinds["logs"] > 0
    assert own.bytes == sum(own.kinds.values()) == folder_bytes(home.run_folder(run))
    assert by_name[heir].shared > 0, "its checkpoint has the parent's files"
    assert [usage.name for usage in used.unknown] == ["gone-1"]
    assert used.home.kinds["ledger"] > 0 and used.home.kinds["trackers"] >= 8192
    everything = folder_bytes(home.folder)
    one = disk_usage(home, [run, heir], only=[heir])
    assert (one.runs, one.unknown, one.home.kinds) == ((by_name[heir],), (), {})
    assert one.total == by_name[heir].bytes
    both = disk_usage(home, [run, heir], only=[run, heir])
    assert both.runs == used.runs and both.total < sum(usage.bytes for usage in both.runs)
    assert used.total == everything < sum(usage.bytes for usage in (*used.runs, *used.unknown)) + used.home.bytes


def test_the_commands(
    home: Home, run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ops.cli.main import main

    monkeypatch.setenv("YATT_HOME", str(home.folder))

    def yatt(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, _ = yatt("du")
    assert code == 0 and run in out and "prefect" in out and "ledger" in out
    code, out, _ = yatt("du", run[:-1], run)
    assert code == 0 and run in out and "prefect" in out and "ledger" not in out and " of 1 run\n" in out
    found = json.loads(yatt("du", "latest", "-o", "json")[1])
    assert [row["run"] for row in found["runs"]] == [run] and found["total"] == found["runs"][0]["bytes"] > 100_000
    code, _, err = yatt("du", "nonsense")
    assert code == 2 and "nonsense" in err
    code, _, err = yatt("archive", run)
    assert code == 2 and "--yes" in err
    code, out, _ = yatt("archive", run, "--yes")
    assert code == 0 and "2 checkpoints and the experience of 3 iterations deleted" in out
    assert "archived" in yatt("du")[1]
    assert '"archived": true' in yatt("du", "-o", "json")[1]
    for command in ("rm", "delete"):
        said = " ".join(yatt(command, "--help")[1].split())
        assert "In MLflow, runs are marked as deleted; `mlflow gc` removes them for good." in said
    code, _, err = yatt("delete", run[:2], "--yes")
    assert code == 2 and run in err
    code, out, err = yatt("delete", run, "--yes", "--why", "old")
    assert (code, out) == (0, f"{run} is deleted\n") and f"{COMMITTED} of 4 iterations" in err
    assert run in yatt("runs", "--deleted")[1]
