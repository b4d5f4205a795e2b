"""Runs whose code is in files that are gone after the start: all kinds execute the run's copies, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.tools import Driver, same_result

REWARD = "def score(prompt, response):\n    return float(len(response) % 3)\n"
TOOL = "def count(expression: str) -> str:\n    return str(len(expression))\n"
SOURCE = """\
def rows(split, count=200):
    for number in range(count):
        yield {"prompt": f"word {number}", "answer": f"{number}"}
"""
CALLBACK = """\
class Told:
    def __init__(self, file):
        self._file = file
    def on_commit(self, commit):
        with open(self._file, "a") as stream:
            stream.write(f"{commit.iteration}\\n")
"""
ADVANTAGE = """\
import numpy as np
def centred(batch, options):
    return batch.rewards - np.mean(batch.rewards)
"""
LOSS = """\
import torch
from yatt_core.algorithms.tokens import TokenLosses
def plain(tokens, options):
    return TokenLosses(-tokens.ratio * tokens.advantages, torch.zeros_like(tokens.ratio))
"""
FILES = {
    "reward.py": REWARD, "tool.py": TOOL, "source.py": SOURCE,
    "callback.py": CALLBACK, "advantage.py": ADVANTAGE, "loss.py": LOSS,
}  # fmt: skip


def create(driver: Driver, folder: Path, told: Path, spec: str) -> str:
    """Creates a run from files, and deletes these."""
    for name, code in FILES.items():
        (folder / name).write_text(code)
    tools = [f"rollout.tools.functions=[{{name: count, file: {folder}/tool.py:count}}]"] if spec == "tools.yaml" else []
    run = driver.create(
        spec,
        "iterations=3",
        f"rewards.parts=[{{name: own, file: '{folder}/reward.py:score'}}]",
        f"data.sources=[{{kind: function, file: '{folder}/source.py:rows'}}]",
        f"callbacks=[{{file: '{folder}/callback.py:Told', options: {{file: {told}}}}}]",
        f"algorithm.advantage={{kind: custom, file: '{folder}/advantage.py:centred'}}",
        f"algorithm.loss={{kind: custom, file: '{folder}/loss.py:plain'}}",
        *tools,
    )
    for name in FILES:
        (folder / name).unlink()
    return run


@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.parametrize("spec", ["tools.yaml", "torch.yaml"])
def test_a_run_from_files_that_are_gone_is_killed_and_gives_the_same(driver: Driver, tmp_path: Path, spec: str) -> None:
    undisturbed = create(driver, tmp_path, tmp_path / "undisturbed", spec)
    driver.drive(undisturbed)
    assert (tmp_path / "undisturbed").read_text().split() == ["0", "1", "2", "3"]
    struck = create(driver, tmp_path, tmp_path / "struck", spec)
    driver.drive_until_killed(struck, "collect:2")
    driver.end_actors(struck)
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(undisturbed))
    assert (tmp_path / "struck").read_text().split()[-1] == "3"
