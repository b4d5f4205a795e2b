"""Modules are looked up as actors will find them, whatever folder the command runs in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from yatt_core.python_path import absolute_entries, folders_of_the_command, modules_in_actors


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("mine", "{0}/mine"), ("/a:mine:b/c", "/a:{0}/mine:{0}/b/c"), (":/a", "{0}:/a"), ("/a", "/a"), ("", "")],
)
def test_relative_entries_of_the_path_become_absolute(tmp_path: Path, given: str, wanted: str) -> None:
    environment = {"PYTHONPATH": given, "OTHER": "mine"}
    found = absolute_entries(environment, tmp_path)
    assert found == {"PYTHONPATH": wanted.format(tmp_path), "OTHER": "mine"}
    assert absolute_entries({}, tmp_path) == {}


def test_modules_are_found_on_the_path_and_not_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, module in (("shared", "shared_methods"), ("here", "local_methods")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text("print('imported')")
    package = tmp_path / "shared" / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("print('noise')")
    (package / "inner.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    # An empty entry would name the current folder.
    path = ["../shared", os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    names = ["shared_methods", "local_methods", "pack.inner", "pack.absent", "no_such_module"]
    found = modules_in_actors(names, ())
    assert Path(found["shared_methods"] or "").resolve() == tmp_path / "shared" / "shared_methods.py"
    assert Path(found["pack.inner"] or "").resolve() == package / "inner.py"
    assert (found["local_methods"], found["pack.absent"], found["no_such_module"]) == (None, None, None)
    assert Path.cwd() == tmp_path / "here" and str(Path.cwd()) in folders_of_the_command()
    own = modules_in_actors(["local_methods"], folders_of_the_command())
    assert own["local_methods"] == str(tmp_path / "here" / "local_methods.py")
    assert "local_methods" not in sys.modules
