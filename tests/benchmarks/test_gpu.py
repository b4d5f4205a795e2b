"""`benchmarks.gpu`: its table of claims, its outcomes, its measures, and that it runs where almost nothing is installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmarks.gpu.__main__ as command
from benchmarks.gpu import runner
from benchmarks.gpu.claims import CLAIMS, Claim, Place
from benchmarks.gpu.runner import FAILS, HOLDS, NEEDS_TWO, NOT_RUN, Outcome, outcomes
from benchmarks.gpu.speed import measure_moves, measure_rollout, measure_training, training_flops
from benchmarks.gpu.work import GPU_SIZES, STAND_IN_SIZES, spec_of
from tests.benchmarks.bare import make_bare_environment
from tests.services import ROOT
from yatt_core.planning.shape import shape_of

LEAST = STAND_IN_SIZES.speed
MODULES = ROOT / "benchmarks" / "gpu"
GUARD = """
import sys
from importlib.machinery import PathFinder

class Guard(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            path = [each for each in path or sys.path if "site-packages" not in each]
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Guard
"""
NOT_LISTED = (
    "ray", "prefect", "vllm", "sqlalchemy", "alembic", "mlflow", "httpx", "fastapi", "psutil", "xxhash", "PIL", "peft",
    "diffusers", "datasets", "pandas", "pytest", "accelerate", "reasoning_gym", "prometheus_client", "aiohttp",
)  # fmt: skip
"""What a machine with a GPU need not have, and YATT or libraries of this environment would take."""


def bare(folder: Path) -> dict[str, str]:
    """Returns the environment of processes that cannot import what is not listed."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(GUARD.format(refused=set(NOT_LISTED)))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def run(*arguments: str, python: str | Path = sys.executable, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [python, "-m", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=3000, check=False
    )


@pytest.mark.timeout(600)
def test_nothing_but_what_is_listed_is_imported(tmp_path: Path) -> None:
    """Checks a claim, and imports all modules of the benchmark with what their processes import in functions."""
    env = bare(tmp_path / "guard")
    names = [f"benchmarks.gpu.{path.stem}" for path in MODULES.glob("*.py") if path.stem != "__init__"]
    names += _imported_in_functions(MODULES / "transfers.py")
    for kind in ("fsdp2", "megatron"):
        names.append(f"yatt_core.engines.train.{kind}.engine")
    imports = "; ".join(f"import {name}" for name in names)
    refused = subprocess.run([sys.executable, "-c", "import ray"], env=env, capture_output=True, text=True, check=False)
    assert "No module named 'ray'" in refused.stderr
    found = subprocess.run(
        [sys.executable, "-c", imports], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    finished = run("benchmarks.gpu", "--stand-in", "--json", "--only", "nccl_alone", "host_sync", env=env)
    report = json.loads(finished.stdout)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert report["figures"]["holds_nccl_alone"] == report["figures"]["holds_host_sync"] == 1.0
    assert "[ 2/2" in finished.stderr


def _imported_in_functions(path: Path) -> list[str]:
    return re.findall(r"^ +from (yatt_core\S+) import", path.read_text(), re.MULTILINE)


@pytest.mark.verify
@pytest.mark.timeout(3600)
def test_every_claim_holds_on_cores_where_only_the_listed_packages_are_installed(tmp_path: Path) -> None:
    python = make_bare_environment(tmp_path / "environment")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    present = f"import importlib.util; print([name for name in {NOT_LISTED} if importlib.util.find_spec(name)])"
    assert subprocess.check_output([python, "-c", present], env=env, text=True) == "[]\n"
    finished = run("benchmarks.gpu", "--stand-in", "--json", "--minutes", "40", python=python, env=env)
    report = json.loads(finished.stdout.splitlines()[-1])
    states = {key: found["state"] for key, found in report["details"]["claims"].items()}
    assert states == dict.fromkeys(states, HOLDS), report["details"]["claims"]
    assert states.keys() == {claim.key for claim in CLAIMS} and finished.returncode == 0


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_the_tests_on_gpus_run_where_only_the_listed_packages_are_installed(tmp_path: Path) -> None:
    python = make_bare_environment(tmp_path / "environment", "pytest")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    options = [
        "--noconftest",
        "-o",
        "addopts=",
        "-m",
        "verify",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 't'}",
    ]
    finished = run("pytest", *options, "tests/engines/test_on_gpus.py", python=python, env=env)
    assert finished.returncode == 0, finished.stdout[-3000:]
    assert re.search(r"\d+ passed", finished.stdout)


def test_each_claim_has_a_check_and_a_key_of_its_own() -> None:
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        source = (MODULES / f"{claim.module}.py").read_text()
        assert f"\ndef {claim.check}(place: Place" in source, claim.key
    modules = [claim.module for claim in CLAIMS]
    runs = [name for number, name in enumerate(modules) if number == 0 or modules[number - 1] != name]
    assert len(runs) == len(set(runs)), "claims that share a process follow each other"


def test_the_page_has_each_claim_in_its_words() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", (ROOT / "docs" / "gpu.md").read_text(), re.MULTILINE)
    assert [(key, says) for key, says, _ in rows] == [(claim.key, claim.says) for claim in CLAIMS]
    assert {state for _, _, state in rows} <= {HOLDS, FAILS, NOT_RUN, NEEDS_TWO, "not run; needs two GPUs"}
    assert all("two GPUs" in state for claim, (_, _, state) in zip(CLAIMS, rows, strict=True) if claim.gpus == 2)


class FakeWorker:
    """A process that answers as told, or ends, by key."""

    started: int = 0

    def __init__(self, place: Place) -> None:
        type(self).started += 1
        self.alive = True

    def outcome(self, key: str, limit: float, cut: bool) -> Outcome:
        if key == "dies":
            self.alive = False
            return Outcome(FAILS, "its process was ended by SIGSEGV")
        return Outcome(FAILS if key == "wrong" else HOLDS, f"{limit:.0f}")

    def end(self) -> None:
        self.alive = False


def claims_of(*keys: str) -> list[Claim]:
    return [Claim(key, "", "engines", "check", gpus=2 if key == "two" else 1, seconds=30.0) for key in keys]


def test_a_claim_that_ends_its_process_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Worker", FakeWorker)
    FakeWorker.started = 0
    place = Place(tmp_path, ("0",))
    found = list(outcomes(claims_of("one", "wrong", "dies", "two", "last"), place, time.monotonic() + 1000.0))
    states = {claim.key: outcome.state for claim, outcome in found}
    assert states == {"one": HOLDS, "wrong": FAILS, "dies": FAILS, "two": NEEDS_TWO, "last": HOLDS}
    assert FakeWorker.started == 2, "a wrong number is no reason for another process"
    assert found[0][1].reason == "30", "seconds of a claim on a GPU"


def test_what_the_time_does_not_allow_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Worker", FakeWorker)
    ((_, outcome),) = outcomes(claims_of("one"), Place(tmp_path, ("0",)), time.monotonic())
    assert (outcome.state, outcome.reason) == (NOT_RUN, "the time was up")


SCRIPT = """
import sys, time
for line in sys.stdin:
    if "says" in line:
        print('{"holds": true, "said": "fine", "figures": {"gap": 0.5}}', flush=True)
    elif "raises" in line:
        raise ValueError("the numbers are wrong")
    elif "hangs" in line:
        time.sleep(600)
    else:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("key", "cut", "state", "reason"),
    [
        ("says", False, HOLDS, "fine"),
        ("raises", False, FAILS, "ValueError: the numbers are wrong"),
        ("hangs", False, FAILS, "no result after 1 s"),
        ("hangs", True, NOT_RUN, "the time was up while it ran"),
        ("dies", False, FAILS, "its process was ended by SIGKILL"),
    ],
)
def test_a_process_that_fails_or_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, cut: bool, state: str, reason: str
) -> None:
    popen = subprocess.Popen
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(runner.subprocess, "Popen", lambda _, **options: popen([sys.executable, script], **options))
    worker = runner.Worker(Place(tmp_path, ("0",)))
    found = worker.outcome(key, 1.0 if key == "hangs" else 60.0, cut)
    assert (found.state, found.reason) == (state, reason)
    assert worker.alive == (key == "says")
    assert bool(found.log) == (key == "raises") and (key != "says" or found.figures == {"gap": 0.5})
    worker.end()
    assert not worker.alive


def test_a_process_that_has_ended_while_it_was_idle_is_a_failed_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen
    command = [sys.executable, "-c", "raise MemoryError('too little')"]
    monkeypatch.setattr(runner.subprocess, "Popen", lambda _, **options: popen(command, **options))
    worker = runner.Worker(Place(tmp_path, ("0",)))
    while worker.alive:
        time.sleep(0.01)
    found = worker.outcome("says", 60.0, False)
    assert (found.state, found.reason) == (FAILS, "MemoryError: too little")
    worker.end()


def test_a_report_tells_what_has_been_found() -> None:
    found = {
        "a": Outcome(HOLDS, "fine", figures={"gap": 0.5}),
        "b": Outcome(FAILS, "wrong", figures={"gap": None, "nccl_sync_gb_s": 2.0}),
        "train_mfu": Outcome(HOLDS, "fine", figures={"train_tokens_per_s": 3.0, "gemm_tflop_s_bf16": 7.0}),
        "c": Outcome(NEEDS_TWO, "this machine has 1"),
    }
    report = command.report_of(found, 0.5, stand_in=True)
    states = {"holds_a": 1.0, "holds_b": 0.0, "holds_train_mfu": 1.0, "holds_c": None}
    assert report.figures == states | {"gap_a": 0.5, "gap_b": None, "nccl_sync_gb_s": 2.0, "train_tokens_per_s": 3.0}
    assert report.baselines == {"gemm_tflop_s_bf16": 7.0} and report.details["stand_in"]
    assert report.details["claims"]["c"]["state"] == NEEDS_TWO


@pytest.mark.parametrize(("state", "code"), [(HOLDS, 0), (FAILS, 1)])
def test_a_report_is_kept_when_the_command_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    def interrupted(claims: list[Claim], place: Place, ends: float) -> Any:
        yield claims[0], Outcome(state, "fine", figures={"gap": 0.0})
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "outcomes", interrupted)
    kept = tmp_path / "report.json"
    monkeypatch.setattr(
        sys, "argv", ["gpu", "--stand-in", "--json", "--write", str(kept), "--only", "host_sync", "nccl_alone"]
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            command.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert ended.value.code == code
    assert figures == {"holds_nccl_alone": 1.0 - code, "gap_nccl_alone": 0.0, "holds_host_sync": None}
    assert json.loads(kept.read_text())["figures"] == figures


def test_devices_have_the_names_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command.devices_here() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8a")
    assert command.devices_here() == ("3", "GPU-8a")


def test_every_part_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import speed

    monkeypatch.setattr(speed, "ROUNDS", 1)
    torch.set_num_threads(1)
    place = Place(tmp_path, ("",), stand_in=True)
    trainer, folder = speed._trainer(place)
    engine = speed._engine(place)
    figures, result = measure_rollout(engine, LEAST)
    trained, seconds = measure_training(trainer, folder, LEAST, result)
    moved = measure_moves(trainer, engine)
    assert figures.pop("rollout_peak_gib") is None and trained.pop("train_peak_gib") is None, "not a GPU's memory"
    for name, rate in (figures | trained | moved | {"seconds": seconds}).items():
        assert (rate or 0.0) > 0.0, name


def test_the_model_has_about_a_billion_parameters() -> None:
    work = GPU_SIZES.speed
    shape = shape_of(spec_of(work), work.vocabulary)
    assert 0.95e9 < shape.parameters < 1.1e9


def test_operations_are_counted_for_computed_rows_only() -> None:
    work = replace(LEAST, response=2)
    shape = shape_of(spec_of(work), work.vocabulary)
    assert (work.rows, work.counted) == (2 * (8 + 4 * 1), 2 * 4 * 2)
    matrices = shape.layers * (shape.layer_matrices + shape.layer_norms) + shape.hidden
    attended = 2 * 8 * 4 + 8 * (8 + 1)
    forward = 2 * (24 * matrices + 16 * work.vocabulary * 32) + 4 * 2 * 32 * attended
    assert training_flops(shape, work) == pytest.approx(3 * forward)


def test_a_missing_gpu_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--json"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert "torch sees no GPU here" in said.err and "--stand-in" in said.err


def test_an_unknown_claim_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--stand-in", "--only", "nccl_alone", "nccl"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2 and "there are no claims nccl; known: torch_rollout_float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--minutes", "0"], "--minutes: 0 leaves no time"),
        (["--minutes", "-1"], "--minutes: -1 leaves no time"),
        (["--minutes", "nan"], "--minutes: nan leaves no time"),
        (["--write", "nowhere/gpu.json"], "nowhere/gpu.json cannot be written"),
    ],
)
def test_what_would_be_lost_at_the_end_is_refused_before_anything_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--stand-in", *given])
    monkeypatch.setattr(command, "checked", lambda **_: pytest.fail("it was begun"))
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err
