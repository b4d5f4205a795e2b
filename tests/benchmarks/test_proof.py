"""`make proof`: the moments it draws, the kills it counts, and its comparison of results."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.proof import __main__ as command
from benchmarks.proof.kills import (
    COLLECT,
    LEARN,
    Kill,
    Killed,
    Moment,
    Scope,
    draw_moment,
    fewest_iterations,
    plan_kills,
)
from benchmarks.proof.runs import Proved, RunUnderProof
from benchmarks.proof.screen import Screen, last_line
from benchmarks.proof.verdict import comparison, figures_of, judge
from flows.run.home import Home
from tests.services import ROOT
from yatt_core.spec import RunSpec, load_spec

KILL = Kill(LEARN, Scope.DRIVER, first=10, last=20)
HIT = Killed(LEARN, Scope.DRIVER, 12, 1, True, 0.5, 0.2, 0.1, 1)


def test_a_run_is_killed_during_collect_and_during_learn() -> None:
    first, second = plan_kills(2, 60)
    assert (first.phase, first.scope) == (COLLECT, Scope.DRIVER)
    assert (second.phase, second.scope) == (LEARN, Scope.EVERYTHING)
    assert 3 <= first.first < first.last < second.first < second.last < 60


def test_four_kills_combine_each_phase_with_each_scope() -> None:
    assert len({(kill.phase, kill.scope) for kill in plan_kills(4, 60)}) == 4


@pytest.mark.parametrize("kills", range(1, 9))
def test_each_kill_has_its_own_range_of_iterations(kills: int) -> None:
    plan = plan_kills(kills, fewest_iterations(kills))
    assert all(kill.first <= kill.last for kill in plan)
    assert all(one.last < other.first for one, other in itertools.pairwise(plan))
    assert plan[-1].last < fewest_iterations(kills)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_proofs_engines_compute_in_the_type_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    proved = list[RunSpec]()

    def prove(arguments: argparse.Namespace, overrides: list[str], folder: Path) -> int:
        proved.append(load_spec(arguments.spec, overrides))
        return 0

    monkeypatch.setattr(command, "_prove", prove)
    monkeypatch.setattr(command, "SURROUNDINGS", ())
    monkeypatch.setattr(sys, "argv", ["proof", "--folder", str(tmp_path), "--dtype", dtype])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command.main() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    (spec,) = proved
    engines = (spec.rollout.engine, spec.trainer.engine)
    assert [getattr(engine, "dtype", None) for engine in engines] == [dtype, dtype]
    assert spec.is_exact and not spec.exact_obstacles() and not spec.obstacles_on_processors()


def test_moments_are_drawn_from_the_whole_range() -> None:
    source = random.Random(0)
    drawn = [draw_moment(source, KILL, committed=-1, iterations=60) for _ in range(500)]
    moments = [moment for moment in drawn if moment is not None]
    assert {moment.iteration for moment in moments} == set(range(10, 21))
    assert min(moment.fraction for moment in moments) < 0.05
    assert 0.95 < max(moment.fraction for moment in moments) < 1


def test_a_second_draw_chooses_an_iteration_that_has_not_begun() -> None:
    source = random.Random(0)

    def drawn(committed: int) -> set[int | None]:
        moments = [draw_moment(source, KILL, committed, 24) for _ in range(200)]
        return {moment and moment.iteration for moment in moments}

    assert drawn(17) == {19, 20}
    assert drawn(20) == {22, 23, 24}
    assert drawn(23) == {None}


class ScriptedLedger:
    """A ledger with one phase, which is open while `is_open` returns True."""

    def __init__(self, is_open) -> None:
        self._is_open = is_open
        self._dispatched = int(time.time() * 1000)
        self.runs = SimpleNamespace(find=lambda name: SimpleNamespace(iteration=11))
        self.phases = SimpleNamespace(attempts=self._attempts, history=lambda run, phase, limit: [0.1, 0.2, 0.3])

    def _attempts(self, run, branch, iteration):
        ended = None if self._is_open() else self._dispatched + 1
        row = {"iteration": 12, "phase": LEARN, "number": 1}
        row |= {"planned_at": self._dispatched - 1, "dispatched_at": self._dispatched}
        return [SimpleNamespace(**row, ended_at=ended, state="DONE" if ended else "DISPATCHED")]


@pytest.fixture
def driver():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def strike(tmp_path, driver, is_open) -> Killed | None:
    bars = Progress(disable=True)
    screen = Screen(bars, bars.add_task(""))
    run = RunUnderProof(Home(tmp_path), ScriptedLedger(is_open), "killed", 60, screen, name="proof-2", _driver=driver)
    return run._strike(KILL, Moment(12, 0.25))


def test_a_kill_counts_if_the_ledger_shows_the_phase_open(tmp_path, driver) -> None:
    killed = strike(tmp_path, driver, is_open=lambda: True)
    assert killed is not None and killed.hit
    assert driver.returncode == -signal.SIGKILL
    assert killed.usual_seconds == 0.2 and killed.seconds_in >= 0.05
    assert killed.processes == 1


def test_a_kill_between_two_phases_does_not_count(tmp_path, driver) -> None:
    killed = strike(tmp_path, driver, is_open=lambda: driver.poll() is None)
    assert killed is not None and not killed.hit


def test_nothing_is_killed_once_the_phase_is_over(tmp_path, driver) -> None:
    looks = iter([True])
    assert strike(tmp_path, driver, is_open=lambda: next(looks, False)) is None
    assert driver.poll() is None


def proved(name: str, kills: tuple[Killed, ...] = (), **changed: object) -> Proved:
    digests = {"weights_digest": "a" * 64, "experience_digest": "b" * 64, "metrics_digest": "c" * 64}
    results = {"run": name, "iteration": 60, "accuracy_sft": 0.277, "accuracy": 0.4, **digests, **changed}
    return Proved(results, {"sound": True, "disagreement": None}, kills, replayed=0, seconds=40.0)


def table_of(undisturbed: Proved, killed: Proved, verdict) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(comparison(undisturbed, killed, verdict))
    return captured.get()


def test_the_proof_holds_for_equal_runs() -> None:
    kills = (replace(HIT, phase=COLLECT, iteration=7, scope=Scope.DRIVER), HIT)
    one = proved("proof-1")
    other = proved("proof-2", kills)
    verdict = judge(one, other, [COLLECT, LEARN])
    assert verdict.holds
    text = table_of(one, other, verdict)
    assert "collect of iteration 7, 100 ms in" in text and "learn of iteration 12" in text
    assert "≠" not in text and text.count("=") == 5
    figures = figures_of(one, other, verdict)
    assert figures["holds"] == figures["weights_equal"] == figures["audits_sound"] == 1 and figures["kills"] == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weights_digest", "f" * 64),
        ("experience_digest", "f" * 64),
        ("metrics_digest", "a" * 63 + "f"),
        ("iteration", 59),
        ("accuracy", 0.4000001),
    ],
)
def test_one_difference_refutes_the_proof(key: str, value: object) -> None:
    one = proved("proof-1")
    other = proved("proof-2", (HIT,), **{key: value})
    verdict = judge(one, other, [LEARN])
    assert not verdict.holds and verdict.unequal == (key,)
    assert table_of(one, other, verdict).count("≠") == 1


def test_a_result_that_neither_run_has_is_not_equal() -> None:
    verdict = judge(proved("proof-1", weights_digest=None), proved("proof-2", (HIT,), weights_digest=None), [LEARN])
    assert verdict.unequal == ("weights_digest",)


def test_an_unsound_audit_and_a_missed_kill_are_reported() -> None:
    damaged = replace(proved("proof-2", (replace(HIT, hit=False),)), audit={"sound": False, "disagreement": "events"})
    verdict = judge(proved("proof-1"), damaged, [LEARN])
    assert verdict.unsound == ("proof-2",) and verdict.missed == (LEARN,)
    assert not verdict.holds


def test_the_last_line_of_a_log_is_shown(tmp_path) -> None:
    log = tmp_path / "driver.log"
    assert last_line(log) == ""
    log.write_text("supervised fine-tuning\niteration 3/60\n\n")
    assert last_line(log) == "iteration 3/60"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--iterations", "5"], "--iterations"),
        (["--kills", "0"], "--kills"),
        (["--spec", "absent.yaml"], "absent.yaml"),
        (["--set", "nonsense=1"], "nonsense"),
        (["--folder", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_a_wrong_argument_exits_with_2(arguments, word, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["proof", "--folder", str(tmp_path), *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            command.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 2
    assert word in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_a_run_killed_twice_ends_like_an_undisturbed_one(tmp_path) -> None:
    options = ["--json", "--iterations", "30", "--folder", str(tmp_path / "proof")]
    proof = subprocess.run(
        [sys.executable, "-m", "benchmarks.proof", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert proof.returncode == 0
    report = json.loads(proof.stdout.splitlines()[-1])
    assert report["figures"]["holds"] == 1 and report["figures"]["kills"] == 2
    assert {kill["phase"] for kill in report["details"]["kills"] if kill["hit"]} == {COLLECT, LEARN}
    assert report["figures"]["updates_replayed"] > 0
