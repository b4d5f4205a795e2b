"""`yatt fork`, `rollback`, `retry`, `resume --set` and `stop --within`: their output, refusals, and effects."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from db.core.holder import Holder, this_process
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.branching.branches import revise
from flows.branching.restore_points import RestorePoints
from flows.branching.spec_changes import PastSpecs
from flows.run.home import Home
from ops.presentation.advice import after_failure
from tests.ops.conftest import Answer, Yatt
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.code_files import settle_code
from yatt_core.errors import DataError
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import checkpoint_folder
from yatt_core.spec import override_spec
from yatt_core.spec.sections.rollout import RolloutSpec
from yatt_core.spec.sections.trainer import TrainerSpec
from yatt_core.storage.run_store import NoStore

COMMITTED = 3


@pytest.fixture
def run(home: Home) -> str:
    """Creates a run with three iterations, checkpoints of 0 and 2, and the spec's revision 1."""
    name = seed_run(home, committed=COMMITTED)
    (home.run_folder(name) / INPUTS).mkdir()
    for iteration in (0, 2):
        seed_checkpoint(home, name, iteration)
    return name


def seed_checkpoint(
    home: Home, run: str, iteration: int, weights: str = "weights", branch: int = 0, term: int = 1
) -> None:
    def write(folder: Path) -> None:
        (folder / "state").write_text(f"state {iteration}")

    folder = str(checkpoint_folder(branch, iteration, term))
    identity = CheckpointIdentity(run, branch, iteration, term, "spec", weights)
    receipt = publish_checkpoint(home.run_folder(run), folder, identity, write, 10)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, holder(), 60)
        row = CheckpointRow(run, branch, iteration, term, folder, receipt.manifest_sha256, receipt.bytes, weights, 0.1)
        ledger.records.checkpoint(fence, row)
        ledger.leases.release(fence)


def holder() -> Holder:
    return this_process("a test")


def everything_of(home: Home) -> tuple[list[str], dict[str, tuple[int, str]]]:
    """Returns the state that a refusal must not change: the runs, and each run's current branch and newest revision."""
    with Ledger.open(home.ledger) as ledger:
        rows = ledger.runs.list()
        return [row.id for row in rows], {
            row.id: (row.current_branch, ledger.runs.revision(row.id).digest) for row in rows
        }


def refused(answer: Answer, code: int, says: str) -> None:
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("error: ") and says in answer.err and "Traceback" not in answer.err


def test_a_fork_that_has_already_reached_its_target_says_how_to_continue(yatt: Yatt, run: str) -> None:
    done = yatt("fork", run, "--at", "2", "--set", "iterations=2")
    assert done.code == 0 and "nothing is left to learn" in done.err and "--set iterations=N" in done.out
    told = yatt("fork", run, "--at", "2", "--set", "iterations=2", "-o", "json")
    assert told.document["parent_run"] == run and "nothing is left to learn" in told.err
    again = yatt("fork", run, "--at", "2", "--set", "iterations=3")
    assert "to start it: yatt resume" in again.out and "nothing is left" not in again.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--at", "4"], "iteration 4 is not committed; expected 0 to 3"),
        (["--at", "2", "--branch", "1"], "--branch: there is no branch 1"),
        (
            ["--at", "2", "--set", "rollout.temprature=1"],
            "rollout.temprature: unknown key; did you mean 'temperature'?",
        ),
        (["--at", "2", "--set", "seed=1"], "--set seed: seed "),
        (["--at", "2", "--set", "data.sources.0.weight=2"], "--set data.sources.0.weight: data.sources "),
        (
            ["--at", "2", "--set", "rollout.engine={kind: torch}", "--set", "trainer.engine={kind: torch}"],
            "--set rollout.engine.kind: ",
        ),
        (["--at", "2", "--set", "algorithm.kl={}"], "--set algorithm.kl: "),
        (["--at", "2", "--set", "iterations=1"], "--set iterations=1: iteration 2 is committed; expected 2 or more"),
        (["--at", "2", "--set", "rewards.parts.0.function=virtual_scor"], "did you mean 'virtual_score'?"),
        (["--at", "2", "--name", "Not A Name"], "name: "),
        (
            ["--at", "1", "--set", "trainer.optimizer.learning_rate=0.1"],
            "other values of trainer.optimizer.learning_rate",
        ),
        (["--at", "3", "--set", "algorithm.epochs=2"], "other values of algorithm.epochs"),
    ],
)
def test_forks_that_are_refused(yatt: Yatt, home: Home, run: str, words: list[str], says: str) -> None:
    before = everything_of(home)
    refused(yatt("fork", run, *words), 2, says)
    assert everything_of(home) == before


def test_a_refused_fork_names_the_restorable_iterations(yatt: Yatt, home: Home, run: str) -> None:
    folder = home.run_folder(run)
    (shard,) = folder.glob("experience/b000/i000001/w00-s0000.*")
    (shard / "samples.parquet").write_bytes(b"damaged")
    answer = yatt("fork", run, "--at", "1")
    refused(answer, 2, ": 0-3; checkpoints: 0, 2")
    assert "replay from checkpoint 0" in answer.err and "experience of iteration 1 " in answer.err
    (folder / checkpoint_folder(0, 2, 1) / "state").write_text("damaged")
    refused(yatt("rollback", run, "--to", "2"), 2, "experience of iteration 1 ")


def test_the_restorable_iterations_are_those_that_can_be_restored(yatt: Yatt, home: Home, run: str) -> None:
    """Iterations 0 to 3 were learnt at one rate; the run goes on with another from the checkpoint of 3."""
    seed_checkpoint(home, run, COMMITTED)
    rate = "trainer.optimizer.learning_rate=0.1"
    with Ledger.open(home.ledger) as ledger:
        points = RestorePoints(ledger, home.run_folder(run), run, 0)
        assert points.within(lambda _: toy_spec(), PastSpecs(ledger)) == [0, 1, 2, 3]
    revise(home, run, [rate])
    refused(yatt("rollback", run, "--to", "1"), 2, "Restorable iterations: 0, 2-3; checkpoints: 0, 2, 3")
    for at in ("0", "2", "3"):
        assert yatt("fork", run, "--at", at, "--set", "trainer.optimizer.learning_rate=0.2").code == 0
    refused(yatt("fork", run, "--at", "1", "--set", "trainer.optimizer.learning_rate=0.2"), 2, "iterations: 0, 2-3;")
    assert yatt("fork", run, "--at", "1").code == 0, "a fork has the spec of its iteration"
    assert yatt("rollback", run, "--to", "2").code == 0


def test_a_damaged_checkpoint_is_not_listed_as_restorable(yatt: Yatt, home: Home, run: str) -> None:
    (home.run_folder(run) / checkpoint_folder(0, 0, 1) / "state").write_text("damaged")
    refused(yatt("rollback", run, "--to", "1"), 2, "checkpoint of iteration 0 is damaged. Restorable iterations: 2-3;")


def test_a_fork_is_created_with_all_that_it_depends_on(yatt: Yatt, home: Home, run: str) -> None:
    made = yatt("fork", run, "--at", "3", "--name", "heir", "--set", "iterations=9", "-o", "json").document
    assert made == {
        "run": "heir-1",
        "parent_run": run,
        "parent_branch": 0,
        "parent_iteration": 3,
        "checkpoint": 2,
        "replayed": 1,
    }
    with Ledger.open(home.ledger) as ledger:
        row = ledger.runs.find("heir-1")
        assert (row.iteration, row.target_iterations, row.state) == (3, 9, "created")
        (checkpoint,) = ledger.records.checkpoints("heir-1")
        assert (checkpoint.run, checkpoint.iteration, checkpoint.term) == ("heir-1", 2, 0)
        shards = ledger.records.shards("heir-1", 0, 3)
        assert [shard.folder for shard in shards] == [f"experience/b000/i000003/w00-s000{i}.t0000" for i in (0, 1)]
        fence = ledger.leases.acquire("heir-1", holder(), 60)
        assert fence.term == 2, "nothing holds it"
        (told,) = [row.payload for row in ledger.outbox.claim(fence) if row.kind == "checkpoint"]
        assert (told["model"], told["iteration"], told["term"], told["state"]) == ("heir", 2, 0, "kept")
    folder = home.run_folder("heir-1")
    assert (folder / checkpoint.folder / "state").read_text() == "state 2"
    assert all((folder / shard.folder / "samples.parquet").exists() for shard in shards)
    assert not list(folder.rglob(".*"))
    text = yatt("fork", run, "--at", "2").out
    assert f"iteration 2 of {run} " in text and text.endswith("yatt resume toy-2\n")


def test_a_rollback_opens_a_branch(yatt: Yatt, home: Home, run: str) -> None:
    refused(yatt("rollback", run, "--to", "9"), 2, "of branch 0 is 3. Restorable iterations: 0-3")
    done = yatt("rollback", run, "--to", "2", "--reason", "reward fell", "-o", "json").document
    assert (done["branch"], done["iteration"], done["superseded"], done["replayed"]) == (1, 2, 1, 0)
    with Ledger.open(home.ledger) as ledger:
        row = ledger.runs.find(run)
        assert (row.current_branch, row.iteration, row.state) == (1, 2, "stopped")
        link = next(link for link in ledger.events.links(run) if link.kind == "branch")
        assert link.body["reason"] == "reward fell"
        created = [row for row in ledger.outbox.claim(ledger.leases.acquire(run, holder(), 60)) if row.kind == "run"]
        assert [row.payload["tags"]["yatt.parent_iteration"] for row in created] == ["2"]
    assert yatt("fork", run, "--at", "3", "--branch", "0", "-o", "json").document["replayed"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ["rollback", "{run}", "--to", "2"],
        ["retry", "{run}", "--iteration", "4", "--phase", "collect"],
        ["resume", "{run}", "--set", "iterations=9"],
    ],
)
def test_a_driven_run_is_left_alone(yatt: Yatt, home: Home, words: list[str]) -> None:
    run = seed_run(home, committed=COMMITTED, ends=False)
    before = everything_of(home)
    answer = yatt(*(word.format(run=run) for word in words))
    refused(answer, 3, f"run {run} is held by driver of {run}")
    assert f": yatt stop {run} --wait" in answer.err
    assert everything_of(home) == before


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["trainer.optimizer.learning_rate=0.1"],
            "trainer.optimizer.learning_rate can only be changed at a checkpoint, and there is none of iteration 3",
        ),
        (["iterations=2"], "--set iterations=2: iteration 3 is committed"),
        (["name=other"], "--set name: run toy-1 "),
        (["model.layers=3"], "--set model.layers: model "),
        (["iteration=9"], "unknown key; did you mean 'iterations'?"),
    ],
)
def test_changes_that_are_refused_by_resume(yatt: Yatt, home: Home, run: str, overrides: list[str], says: str) -> None:
    before = everything_of(home)
    refused(yatt("resume", run, *(word for text in overrides for word in ("--set", text))), 2, says)
    assert everything_of(home) == before


def test_changes_that_do_not_fit_the_codec_or_the_inputs(yatt: Yatt, home: Home) -> None:
    spec = toy_spec()
    run = seed_run(home, spec=spec)
    materialise(spec, home.run_folder(run))
    for words in (["resume", run], ["fork", run, "--at", "1"]):
        refused(
            yatt(*words, "--set", "data.max_prompt_tokens=1"),
            2,
            "data.max_prompt_tokens: prompt 0/train/spell_backward:",
        )
    real = seed_run(home, spec=spec.model_copy(update={"rollout": RolloutSpec(), "trainer": TrainerSpec()}))
    tools = "rollout.tools={functions: [{name: c, function: calculator}], max_result_tokens: 1}"
    refused(yatt("resume", real, "--set", tools), 2, "rollout.tools.max_result_tokens: 1 ")
    with Ledger.open(home.ledger) as ledger:
        assert [ledger.runs.revision(name).revision for name in (run, real)] == [1, 1]


def test_settings_of_an_open_iteration_are_not_changed(yatt: Yatt, home: Home, run: str) -> None:
    seed_checkpoint(home, run, COMMITTED)
    (home.run_folder(run) / "experience/b000/i000004/w00-s0000.t0001").mkdir(parents=True)
    answer = yatt("resume", run, "--set", "rollout.temperature=0.5")
    refused(answer, 2, "Discard it with --discard beside --set")
    assert "rollout.temperature" in answer.err and "iteration 4 " in answer.err
    refused(yatt("resume", run, "--discard"), 2, "--discard: expected beside --set")


def test_an_iteration_that_is_committed_is_refused_before_anything_starts(
    yatt: Yatt, home: Home, run: str, driven: list[str]
) -> None:
    before = everything_of(home)
    answer = yatt("resume", run, "--until", "2", "--set", "iterations=9")
    refused(
        answer, 2, "--until 2: run toy-1 has committed iteration 3; expected 3 or more. `yatt rollback toy-1 --to 2`"
    )
    assert everything_of(home) == before and driven == []
    told = yatt("resume", run, "--until", "300")
    assert told.code == 0 and "it ends at iteration 4; `--set iterations=N` moves it" in told.err
    assert "beyond" not in yatt("resume", run, "--until", "4").err
    assert driven == [run, run]


GOOD = "def score(prompt, response):\n    return 0.5\n"


def seed_with_files(home: Home, folder: Path) -> str:
    """Creates a run whose reward and callback are files, with a checkpoint of 2 and experience of the open iteration 4."""
    (folder / "reward.py").write_text("def score(prompt, response):\n    raise ValueError\n")
    (folder / "callback.py").write_text("class Told:\n    def on_commit(self, commit):\n        pass\n")
    spec = override_spec(
        toy_spec(),
        [
            f"rewards.parts.0={{name: own, file: '{folder}/reward.py:score'}}",
            f"callbacks=[{{file: '{folder}/callback.py:Told'}}]",
        ],
        "toy",
    )
    run = seed_run(home, committed=COMMITTED, spec=spec)
    (home.run_folder(run) / INPUTS).mkdir()
    seed_checkpoint(home, run, 2)
    settle_code(spec, home.run_folder(run), NoStore())
    (home.run_folder(run) / "experience/b000/i000004/w00-s0000.t0001").mkdir(parents=True)
    return run


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the runs that `yatt resume` would drive, which it does not."""
    runs: list[str] = []
    monkeypatch.setattr("ops.cli.commands.driving.train.drive", lambda home, run, *_, **__: runs.append(run))
    return runs


def test_a_corrected_reward_file_is_taken_by_the_command_that_the_advice_names(
    yatt: Yatt, home: Home, tmp_path: Path, driven: list[str]
) -> None:
    run = seed_with_files(home, tmp_path)
    advice = after_failure(DataError("x"), run, True, [str(tmp_path / "reward.py")])
    assert advice is not None and f"`yatt resume {run} --new-code`" in advice
    refused(
        yatt("resume", run, "--new-code"), 2, "no file has changed since run toy-1 took its copies: rewards.parts.0"
    )
    (tmp_path / "reward.py").write_text(GOOD)
    named = ["--set", f"rewards.parts.0.file={tmp_path}/reward.py:score"]
    refused(yatt("resume", run, *named), 2, "Discard it with --discard beside --set")
    assert yatt("resume", run, "--new-code").code == 0
    with Ledger.open(home.ledger) as ledger:
        row = ledger.runs.find(run)
        revision = ledger.runs.revision(run)
        links = ledger.events.links(run)
    assert (row.current_branch, row.iteration, revision.revision) == (1, COMMITTED, 2), "iteration 4 begins anew"
    assert revision.spec["rewards"]["parts"][0]["sha256"] == hashlib.sha256(GOOD.encode()).hexdigest()
    assert (home.run_folder(run) / "code" / hashlib.sha256(GOOD.encode()).hexdigest()).is_dir()
    reasons = [link.body["reason"] for link in links if link.kind in ("branch", "spec_revision")]
    assert reasons[-2:] == [f'--new-code --set rewards.parts.0.file="{tmp_path}/reward.py:score"'] * 2
    assert driven == [run]


def test_new_code_that_scores_nothing_discards_nothing(
    yatt: Yatt, home: Home, tmp_path: Path, driven: list[str]
) -> None:
    run = seed_with_files(home, tmp_path)
    with (tmp_path / "callback.py").open("a") as file:
        file.write("# corrected\n")
    assert yatt("resume", run, "--new-code").code == 0
    with Ledger.open(home.ledger) as ledger:
        assert (ledger.runs.find(run).current_branch, ledger.runs.revision(run).revision) == (0, 2)
    assert driven == [run]


def test_experience_is_discarded_beside_a_change_if_asked(
    yatt: Yatt, home: Home, tmp_path: Path, driven: list[str]
) -> None:
    run = seed_with_files(home, tmp_path)
    assert yatt("resume", run, "--set", "rewards.parts.0.on_failure=mask", "--discard").code == 0
    with Ledger.open(home.ledger) as ledger:
        assert (ledger.runs.find(run).current_branch, ledger.runs.revision(run).revision) == (1, 2)
    assert driven == [run]


def test_new_code_needs_files(yatt: Yatt, run: str) -> None:
    refused(yatt("resume", run, "--new-code"), 2, "names no Python file that it executes")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--iteration", "4", "--phase", "colect"], "--phase colect: expected one of place, collect"),
        (["--iteration", "2", "--phase", "learn"], "`yatt rollback toy-1 --to 1`"),
        (["--iteration", "7", "--phase", "learn"], "learn is at iteration 4, not 7"),
        (["--iteration", "4", "--phase", "recover"], "recover is at iteration 3, not 4"),
        (
            ["--iteration", "4", "--phase", "learn"],
            "learn of iteration 4 has no failed attempt; failed phases: collect",
        ),
    ],
)
def test_retries_that_are_refused(yatt: Yatt, home: Home, run: str, words: list[str], says: str) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, holder(), 60)
        attempt = ledger.phases.plan(fence, 0, 4, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.fail(fence, attempt, "data", "no such word")
        ledger.leases.release(fence)
    refused(yatt("retry", run, *words), 2, says)


def test_a_retry_forgives_failures_and_resumes(
    yatt: Yatt, home: Home, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, holder(), 60)
        attempt = ledger.phases.plan(fence, 0, 4, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.fail(fence, attempt, "data", "no such word")
        ledger.leases.release(fence)
    driven: list[str] = []
    monkeypatch.setattr("ops.cli.commands.driving.train.drive", lambda home, run, output: driven.append(run))
    answer = yatt("retry", run, "--iteration", "4", "--phase", "collect", "--reason", "mended")
    assert (answer.code, driven) == (0, [run])
    assert "(1 data forgiven)" in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert ledger.phases.charged(run, 0, 4, "collect") == {}


def test_stop_within_a_limit(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    assert "30 s" in yatt("stop", run, "--within", "30").out
    with Ledger.open(home.ledger) as ledger:
        left = ledger.runs.stop_deadline(run)
    assert left is not None and 0 < left <= 30


def test_a_missing_checkpoint_has_no_lineage(yatt: Yatt, home: Home, run: str) -> None:
    refused(yatt("lineage", run, "--checkpoint", "1"), 2, "no checkpoint of iteration 1; available: 0, 2")
