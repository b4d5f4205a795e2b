"""Configurations from the peers' own documentation, values and all: what was taken of each, and that no key is missing.

What is expected is in `expected/`, by list: each key with what was written for it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.starter.peers.entries import List
from ops.starter.peers.files import read_peer_file
from tests.ops.starter.peers.reading import EXAMPLES, at, of_file, summary

EXPECTED = Path(__file__).parent / "expected"
FILES = sorted(EXAMPLES.iterdir())
HOME = Path("/home/someone")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(HOME))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_became_of_each_key(path: Path) -> None:
    expected = json.loads((EXPECTED / f"{path.stem}.json").read_text())
    assert summary(of_file(path, processes=8)) == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_key_is_in_exactly_one_list(path: Path) -> None:
    _, said = read_peer_file(path)
    translation = of_file(path, processes=8)
    listed = [verdict.key for name in List for verdict in translation.lists[name]]
    assert sorted(listed) == sorted(entry.key for entry in said.entries)


def test_there_are_three_of_each_peer() -> None:
    names = [path.stem.split("-")[0] for path in FILES]
    assert all(names.count(peer) >= 3 for peer in ("verl", "trl", "openrlhf"))


def test_the_line_of_a_key_is_that_of_the_file() -> None:
    path = EXAMPLES / "openrlhf-reinforce.sh"
    lines = path.read_text().splitlines()
    _, said = read_peer_file(path)
    for entry in said.entries:
        assert entry.key.rpartition(" ")[2].lstrip("-") in lines[entry.line - 1], entry


def test_the_shell_variables_of_a_script_are_replaced() -> None:
    translation = of_file(EXAMPLES / "verl-dapo.sh")
    assert at(translation, "rollout.max_new_tokens") == 20 * 1024
    assert at(translation, "model") == {"kind": "folder", "path": f"{HOME}/verl/models/Qwen2.5-32B"}
    assert at(translation, "trainer.engine.ranks") == 16 * 8
