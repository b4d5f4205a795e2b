"""Maintenance: what each step does, that a failing one stops no other, and that the result is recorded and shown."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.errors import Fenced
from db.core.holder import this_process
from db.ledger import Ledger
from flows.backup.folder import BackupFolder
from flows.maintenance import steps
from flows.maintenance.record import KEPT, MaintenanceResult, StepResult, add_result, read_results
from flows.maintenance.runner import MaintenanceError, maintain
from flows.maintenance.settings import MaintenanceSettings, read_settings
from flows.maintenance.steps import UNSOUND, audit_all, prune_idle, steps_of
from flows.run.deletion import delete_run
from flows.run.home import Home
from flows.run.lease import LeaseKeeper
from tests.db.tools import holder
from tests.flows.run.scenarios import Told
from tests.flows.run.test_deletion import started
from tests.ops.audited import make_sound_run
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError, FencedError, InfrastructureError
from yatt_core.spec import RunSpec


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("sound") / "runs")
    make_sound_run(home)
    return home.folder


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Home:
    """A home with a run in which everything agrees."""
    return Home(Path(shutil.copytree(sound, tmp_path / "runs")))


def ran(home: Home, tmp_path: Path, away: bool = False, **settings: object) -> MaintenanceResult:
    given = MaintenanceSettings.model_validate(settings)
    given_steps = steps_of(home, given, Told(tmp_path / "told", away), lambda ledger, run: None, ("users.json",))
    return maintain(home, given_steps, "ann")


def said(result: MaintenanceResult) -> dict[str, tuple[bool, str]]:
    return {step.name: (step.ok, step.said) for step in result.steps}


def test_a_sound_home_is_audited_backed_up_and_tidied(home: Home, tmp_path: Path) -> None:
    (home.folder / "users.json").write_text("{}")
    target = tmp_path / "backups"
    results = [ran(home, tmp_path, backup={"to": str(target), "keep": 2}) for _ in range(3)]
    found = said(results[-1])
    assert results[-1].ok and list(found) == ["deletions", "retention", "audit", "backup", "database"]
    assert found["audit"] == (True, "1 run is sound")
    assert found["database"] == (True, "statistics updated, log written back")
    assert len(BackupFolder(target).ids()) == 2 and found["backup"][1].endswith("1 older one deleted")
    newest = BackupFolder(target).read(BackupFolder(target).ids()[-1])
    assert "users.json" in newest.files
    assert [each.by for each in read_results(home)] == ["ann"] * 3 and read_results(home)[0] == results[-1]


def test_without_settings_there_is_no_backup_and_audits_can_be_left_out(home: Home, tmp_path: Path) -> None:
    assert list(said(ran(home, tmp_path))) == ["deletions", "retention", "audit", "database"]
    assert list(said(ran(home, tmp_path, audit=False))) == ["deletions", "retention", "database"]


def test_a_damaged_file_is_found_and_recorded_once_in_the_audit_chain(home: Home, tmp_path: Path) -> None:
    (weights,) = home.run_folder("toy-1").glob("checkpoints/b000-i000002.*/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    results = [ran(home, tmp_path, backup={"to": str(tmp_path / "backups")}) for _ in range(2)]
    for result in results:
        found = said(result)
        assert not result.ok and not found["audit"][0] and str(weights) in found["audit"][1]
        assert not found["backup"][0] and "not in the backup" in found["backup"][1]
        assert found["database"][0], "a step that fails stops no other"
    with Ledger.open(home.ledger) as ledger:
        (link,) = ledger.events.of_kind("toy-1", UNSOUND)
        assert link.body["check"] == "checkpoints" and str(weights) in link.body["place"]
        assert ledger.events.verify("toy-1") is None


def test_a_deletion_that_was_not_finished_is_finished(home: Home, tmp_path: Path) -> None:
    run = started(home)
    assert delete_run(home, run, "bob", "", Told(tmp_path / "told", away=True)).left
    assert not said(ran(home, tmp_path, away=True))["deletions"][0]
    assert said(ran(home, tmp_path))["deletions"] == (True, "1 finished")
    assert said(ran(home, tmp_path))["deletions"] == (True, "0 finished")


def test_idle_runs_lose_what_they_no_longer_need_and_held_ones_nothing(home: Home, tmp_path: Path) -> None:
    tree = toy_spec().model_dump(mode="json")
    tree |= {
        "retention": {**tree["retention"], "experience": "needed"},
        "checkpoints": {**tree["checkpoints"], "keep": 1},
    }
    run = home.run_folder("toy-1")
    trash = run / "checkpoints/.b000-i000001.t0001.77.trash"
    partial = run / "checkpoints/.b000-i000003.t0001.1.shares"
    for folder in (trash, partial):
        folder.mkdir()
        (folder / "part").write_text("part")
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire("toy-1", this_process("driver"), 600)
        ledger.runs.add_revision(fence, tree, "digest", "keep less", 4)
        head = ledger.events.head("toy-1")
        assert prune_idle(home, ledger) == "nothing to delete"
        assert trash.exists() and ledger.events.head("toy-1") == head
        ledger.leases.release(fence)
        assert prune_idle(home, ledger) == "files of toy-1 deleted"
        assert not trash.exists() and not partial.exists()
        kept = [row.iteration for row in ledger.records.own_checkpoints("toy-1", "kept")]
        assert kept == [2, 0] and len(list(run.glob("checkpoints/b*"))) == 2
        assert {path.parent.name for path in run.glob("experience/b000/*/w*")} == {"i000003"}
        head = ledger.events.head("toy-1")
        assert prune_idle(home, ledger) == "nothing to delete"
        assert ledger.events.head("toy-1") == head, "a run with nothing to delete is left alone"


def test_a_run_that_cannot_be_checked_keeps_no_other_from_being_audited_and_pruned(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (weights,) = home.run_folder("toy-1").glob("checkpoints/b000-i000002.*/weights.safetensors")
    weights.write_bytes(b"x")
    with Ledger.open(home.ledger) as ledger:
        spec = toy_spec()
        # Newer than toy-1, so that both steps come to it first.
        other = ledger.runs.create("other", spec.model_dump(mode="json"), spec.digest, spec.iterations).id

        def reader_of(ledger: Ledger, run: str) -> None:
            if run == other:
                raise InfrastructureError("the tracker is away")

        with pytest.raises(
            MaintenanceError, match=rf"^{other}: could not be audited: the tracker is away; toy-1: checkpoints"
        ):
            audit_all(home, ledger, reader_of)
        asked = list[str]()
        current = steps.current_spec

        def current_spec(ledger: Ledger, run: str) -> RunSpec:
            asked.append(run)
            if run == other:
                raise ConfigurationError("rollout.kind: unknown key")
            return current(ledger, run)

        monkeypatch.setattr(steps, "current_spec", current_spec)
        with pytest.raises(MaintenanceError, match=f"^nothing to delete; {other}: rollout.kind: unknown key$"):
            prune_idle(home, ledger)
        assert asked[:2] == [other, "toy-1"]


def test_nothing_is_deleted_once_the_lease_is_lost(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    trash = home.run_folder("toy-1") / "checkpoints/.b000-i000001.t0001.77.trash"
    trash.mkdir()
    with Ledger.open(home.ledger) as ledger:

        def lost(lease: LeaseKeeper) -> None:
            line = ledger.overview.line("toy-1")
            ledger.leases.release(Fence.of_run("toy-1", line.term))
            ledger.leases.acquire("toy-1", this_process("driver"), 600)
            raise FencedError("another driver has it")

        monkeypatch.setattr(LeaseKeeper, "check", lost)
        with pytest.raises(MaintenanceError, match=r"toy-1: another driver has it$"):
            prune_idle(home, ledger)
        assert trash.exists() and list(ledger.leases.holders()) == ["toy-1"]


def test_free_pages_are_given_back_when_nobody_drives(home: Home) -> None:
    with Ledger.open(home.ledger) as ledger:
        for number in range(40):
            ledger.events.append("toy-1", "note", {"text": "x" * 20_000, "number": number})
        with ledger._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM event WHERE kind = 'note'")
        before = ledger.upkeep.tidy(idle=False)
        assert "freed" not in before
        assert "pages freed" in ledger.upkeep.tidy(idle=True)
        assert "freed" not in ledger.upkeep.tidy(idle=True)


def test_a_step_that_fails_is_told_without_secrets_and_the_others_run(home: Home) -> None:
    def finds() -> str:
        raise MaintenanceError("postgresql://me:secret@host/db is wrong")

    def fails() -> str:
        raise PermissionError(13, "Permission denied", "/backups/x")

    result = maintain(home, {"first": finds, "second": lambda: "done", "third": fails}, "ann")
    assert said(result)["third"] == (False, "[Errno 13] Permission denied: '/backups/x'")
    assert not result.ok and "secret" not in result.trouble and result.trouble.startswith("first: ")
    assert said(result)["second"] == (True, "done")


def test_two_do_not_maintain_a_home_at_once(home: Home) -> None:
    begun = threading.Event()
    go_on = threading.Event()

    def waits() -> str:
        begun.set()
        assert go_on.wait(30)
        return "done"

    thread = threading.Thread(target=maintain, args=(home, {"waits": waits}, "ann"))
    thread.start()
    assert begun.wait(30)
    with pytest.raises(InfrastructureError, match="another process maintains this home, yatt maintenance"):
        maintain(home, {}, "bob")
    go_on.set()
    thread.join()
    assert maintain(home, {}, "bob").ok


def test_a_home_that_another_host_maintains_is_left_alone_until_its_lease_ends(home: Home) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.take("home", holder("maintenance far away"), 600)
        with pytest.raises(InfrastructureError, match="another process maintains this home, maintenance far away"):
            maintain(home, {}, "bob")
        ledger.leases.renew(fence, -1)
        assert maintain(home, {}, "bob").ok
        with pytest.raises(Fenced):
            ledger.leases.renew(fence, 10)


def test_maintenance_that_was_replaced_begins_no_other_step(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[str]()
    lost = threading.Event()
    lose = LeaseKeeper._lose
    monkeypatch.setattr("flows.maintenance.runner.LIFE_SECONDS", 0.5)
    monkeypatch.setattr(LeaseKeeper, "_lose", lambda keeper, reason: (lose(keeper, reason), lost.set()))

    def is_replaced() -> str:
        with Ledger.open(home.ledger) as ledger:
            ledger.leases.take("home", holder("maintenance far away"), 600, lambda _: True)
        assert lost.wait(30)
        return "done"

    with pytest.raises(FencedError, match="term 2 holds the lease"):
        maintain(home, {"first": is_replaced, "second": lambda: done.append("second") or "done"}, "ann")
    assert not done


def test_results_are_kept_up_to_a_number_and_a_damaged_file_is_named(home: Home) -> None:
    for number in range(KEPT + 2):
        add_result(home, MaintenanceResult(number, number, "ann", (StepResult("a", True, "b", 0.0),)))
    assert [each.began_at for each in read_results(home)] == list(range(KEPT + 1, 1, -1))
    (home.folder / "maintenance.json").write_text("{}")
    with pytest.raises(InfrastructureError, match=r"maintenance\.json: not valid"):
        read_results(home)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("backup: {to: backups}", "maintenance.yaml: backup.to.*expected an absolute path"),
        ("backup: {to: /b, keep: 0}", "maintenance.yaml: backup.keep"),
        ("corn: x", "maintenance.yaml: corn"),
        ("timezone: Mars/Base", "timezone"),
        ("cron: '0 30 * * *'", "maintenance.yaml: cron: '0 30.*hour: '30' is not in 0-23"),
    ],
)
def test_wrong_settings_are_named(home: Home, text: str, says: str) -> None:
    (home.folder / "maintenance.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        read_settings(home)
