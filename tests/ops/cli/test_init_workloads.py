"""`yatt init` asks the recognisers of installed workloads: what one knows gets its spec, and what goes wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.conftest import Yatt
from yatt_core.spec import load_spec

MODULE = """\
from yatt_core.workloads.contract import Recognition
def numbers(path):
    '''Recognises a folder
    with `numbers.txt`.

    More is of no use to the user.
    '''
    if not (path / "numbers.txt").is_file():
        return None
    if not (path / "numbers.txt").read_text():
        raise ValueError(f"{path}/numbers.txt:1: is empty; expected a number")
    return Recognition("one number", {
        "iterations": 3,
        "workload": {"kind": "tests.workloads.counting:Counting", "settings": {"at": 1, "places": [str(path)]}},
    })
def broken(path):
    raise RuntimeError("no idea")
def unsound(path):
    return Recognition("a run", {"name": "mine"})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers.txt").write_text("7")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "asked_by_init.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(folder: Path, distribution: str, **functions: str) -> None:
    """Has a distribution name recognisers."""
    told = folder / "site" / f"{distribution}-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in functions.items()]
    (told / "entry_points.txt").write_text("\n".join(["[yatt.recognisers]", *lines, ""]))


def test_what_a_recogniser_knows_gets_its_spec(yatt: Yatt, folder: Path) -> None:
    install(folder, "mine", number="asked_by_init:numbers")
    answer = yatt("init", "runs/first", "--data", "data")
    assert answer.code == 0, answer.err
    assert "data: one number, recognised by mine:number" in answer.err
    spec = load_spec(folder / "runs" / "first" / "data.yaml")
    assert spec.name == "data" and spec.iterations == 3
    assert spec.workload.settings == {"at": 1, "places": ["../../data"]}
    assert spec.workload.folder == str(folder / "runs" / "first")
    there = yatt("init", "data", "--name", "there", "-o", "json").document
    assert there == {
        "spec": "data/there.yaml",
        "recogniser": "mine:number",
        "what": "one number",
        "workload": "tests.workloads.counting:Counting",
    }
    assert load_spec(folder / "data" / "there.yaml").workload.settings["places"] == ["."]
    again = yatt("init", "data", "--name", "there")
    assert again.code == 2 and "data/there.yaml exists already" in again.err


def test_what_cannot_be_read_is_an_error_with_its_place(yatt: Yatt, folder: Path) -> None:
    install(folder, "mine", number="asked_by_init:numbers")
    (folder / "data" / "numbers.txt").write_text("")
    answer = yatt("init", "data")
    assert answer.code == 2
    assert f"recogniser mine:number: {folder}/data/numbers.txt:1: is empty; expected a number" in answer.err
    assert "; if it is something else, say --recogniser none" in answer.err
    assert not list(folder.glob("data/*.yaml"))
    alone = yatt("init", "data", "--recogniser", "number")
    assert alone.code == 2 and alone.err.strip().endswith("expected a number")


def test_what_no_recogniser_knows_is_said_as_before(yatt: Yatt, folder: Path) -> None:
    install(folder, "mine", number="asked_by_init:numbers")
    (folder / "other").mkdir()
    for words in (("--data", "other"), ("--data", "data", "--recogniser", "none")):
        answer = yatt("init", "runs", *words)
        assert answer.code == 2 and "the folder has no data files" in answer.err
        assert "packages of workloads" not in answer.err
    answer = yatt("init", "other")
    assert answer.code == 2 and "--data: missing" in answer.err
    answer = yatt("init", "--data", "other", "--recogniser", "number")
    assert answer.code == 2 and "--recogniser number: other is nothing that it recognises" in answer.err
    assert "recognises; mine:number: Recognises a folder with `numbers.txt`.\n" in answer.err
    answer = yatt("init", "--data", "other", "--recogniser", "nobody")
    assert answer.code == 2 and "there is none of this name; installed:" in answer.err and "mine:number" in answer.err


@pytest.mark.parametrize(("data", "said"), [("other", "has no data files"), ("other/a.bin", "expected a file of JSON")])
def test_packages_are_named_if_none_is_installed(
    data: str, said: str, yatt: Yatt, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.starter.packages.entry_points", lambda group: ())
    (folder / "other").mkdir()
    (folder / "other" / "a.bin").write_bytes(b"")
    answer = yatt("init", "--data", data)
    assert answer.code == 2 and said in answer.err
    assert "packages of workloads may recognise other data, but none is installed (docs/workloads.md)" in answer.err


def test_a_quoted_home_folder_is_found(yatt: Yatt, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, "mine", number="asked_by_init:numbers")
    monkeypatch.setenv("HOME", str(folder))
    assert yatt("init", "~/runs", "--data", "~/data").code == 0
    assert (folder / "runs" / "data.yaml").is_file() and not (folder / "~").exists()
    answer = yatt("init", "--data", "~nobody-of-this-name/data")
    assert answer.code == 2 and "~nobody-of-this-name/data: there is no such home folder" in answer.err


def test_two_that_know_it_are_both_named(yatt: Yatt, folder: Path) -> None:
    install(folder, "mine", number="asked_by_init:numbers")
    install(folder, "yours", number="asked_by_init:numbers")
    answer = yatt("init", "data")
    assert answer.code == 2
    assert "mine:number and yours:number take it for theirs; choose one, such as --recogniser mine:number" in answer.err
    assert yatt("init", "data", "--recogniser", "yours:number").code == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("asked_by_init:nothing", "asked_by_init has no 'nothing'"),
        ("no_such_module_here:numbers", "importing no_such_module_here failed: ModuleNotFoundError"),
        ("asked_by_init:broken", "failed: "),
        ("asked_by_init:unsound", "expected None, or a Recognition whose spec has workload.kind and no name"),
    ],
)
def test_one_that_fails_is_named_and_can_be_left_out(target: str, said: str, yatt: Yatt, folder: Path) -> None:
    install(folder, "mine", number="asked_by_init:numbers")
    install(folder, "theirs", odd=target)
    answer = yatt("init", "data")
    assert answer.code == 2 and "recogniser theirs:odd" in answer.err and said in answer.err
    assert "leave it out with --recogniser none" in answer.err
    assert yatt("init", "data", "--recogniser", "number").code == 0


def test_options_of_language_models_ask_none(yatt: Yatt, folder: Path) -> None:
    install(folder, "theirs", odd="no_such_module_here:numbers")
    answer = yatt("init", "runs", "--data", "data", "--model", "model")
    assert answer.code == 2 and "the folder has no data files" in answer.err
    answer = yatt("init", "runs", "--data", "data", "--model", "model", "--recogniser", "odd")
    assert answer.code == 2 and "--recogniser odd: --model is for language models; leave one of them out" in answer.err
