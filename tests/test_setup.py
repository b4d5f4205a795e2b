"""Setup of the project: pinned versions without addresses, pip's settings passed on, documented make targets."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from ops import bootstrap

ROOT = Path(__file__).parent.parent


def test_constraints_pin_every_dependency_and_name_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+( ;.*)?", line) for line in lines), "name==version only"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # vLLM's build for GPUs replaces the one for CPUs; both cannot be pinned together.
    declared = [*project["dependencies"], *(need for name, needs in extras.items() if name != "vllm" for need in needs)]
    names = {re.split(r"[\[<>=~!]", need)[0].lower() for need in declared}
    assert names - {line.split("==")[0].lower() for line in lines} == set()


@pytest.mark.parametrize("target", ["run", "test", "verify", "check", "docs", "setup", "engines", "clean"])
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
    for name in ("pyproject.toml", "constraints.txt", "ops/bootstrap.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    before = bootstrap.fingerprint()
    assert bootstrap.fingerprint() == before
    (tmp_path / "constraints.txt").write_text("torch==0\n")
    assert bootstrap.fingerprint() != before


def test_the_ci_gate_runs_the_readmes_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "    make test " in (ROOT / "README.md").read_text()
