"""The example soup: its rewards, and a real soup, killed with kill -9 while it trains and while it measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from db.core.errors import LedgerVersionError
from db.ledger import Ledger
from examples.soup.rewards import echo, fresh, vowels
from flows.run.home import Home
from flows.soups.record import POINT, SoupRecord
from tests.services import ROOT
from yatt_core.prompts.prompt import Prompt
from yatt_core.soups.spec import load_soup

SOUP = ROOT / "examples" / "soup" / "soup.yaml"
SMALL = (
    "iterations=4",
    "data.held_out=30",
    "data.prompts_per_iteration=8",
    "tracking.enabled=false",
    "sft.max_steps=5",
)
SECONDS = 900.0


def test_each_letter_counts_for_one_objective_at_most() -> None:
    prompt = Prompt(0, 0, "p0", "Spell this word backward: moon", "noom", {})
    assert [reward(prompt, "moaeb!") for reward in (echo, vowels, fresh)] == pytest.approx(
        [(2 / 6) ** 0.5, (2 / 6) ** 0.5, (1 / 6) ** 0.5]
    )
    assert (echo(prompt, ""), echo(prompt, "moonmoon"), vowels(prompt, "xxxxxxxa")) == (0.0, 1.0, 0.0)


def test_the_example_is_sound() -> None:
    soup, run = load_soup(SOUP)
    assert soup.objectives == ("echo", "vowels") and run.name == soup.name
    assert soup.search_iterations(run) == run.iterations // 5


class Cook:
    """Runs `yatt soup` in a home of its own, as processes that a test may kill."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.home, self._environment = Home(folder), {**os.environ, **environment}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ops.cli.main", "--home", str(self.home.folder), "soup", *words, "-o", "json"]
        return subprocess.Popen(
            command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(self, *words: str) -> dict[str, Any]:
        process = self.start(*words)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    def kill_when(self, process: subprocess.Popen[str], reached: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self.home.folder.joinpath("ledger.db").exists():
                # The soup may still be creating the ledger's tables.
                with suppress(LedgerVersionError), Ledger.open(self.home.ledger, migrate=False) as ledger:
                    if reached(ledger):
                        break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def kill_a_driver(self) -> None:
        """Kills whoever holds the lease of a run, if anyone does."""
        with Ledger.open(self.home.ledger, migrate=False) as ledger:
            holders = [holder.pid for holder in ledger.leases.holders().values() if holder.pid != os.getpid()]
        for pid in holders[:1]:
            os.kill(pid, signal.SIGKILL)

    def digests(self) -> object:
        with Ledger.open(self.home.ledger, migrate=False) as ledger:
            (name,) = [run.id for run in ledger.runs.list() if run.id.endswith("-1")]
            record = SoupRecord.of(ledger, name)
            points = [
                (link.body["stage"], link.body["rewards"], link.body["weights_digest"])
                for link in ledger.events.of_kind(name, POINT)
            ]
            weights = {member: ledger.commits.latest(run).weights_digest for member, run in record.members().items()}
            return sorted(points), weights, record.facts().chosen


def options(tmp_path: Path) -> list[str]:
    spec = tmp_path / "soup.yaml"
    base = SOUP.parent / "runs.yaml"
    spec.write_text(
        f"{{name: brew, base: {base}, objectives: [echo, vowels], betas: [0.6, 0.8], search_fraction: 0.5, grid_points: 3, "
        "rewarded_soup: false}"
    )
    return [str(spec), *(word for change in SMALL for word in ("--set", change))]


@pytest.mark.verify
@pytest.mark.timeout(3 * SECONDS)
def test_a_real_soup_that_was_killed_has_the_digests_of_one_that_was_not(
    tmp_path: Path, service_environment: Mapping[str, str]
) -> None:
    plain, killed = (Cook(tmp_path / name, service_environment) for name in ("plain", "killed"))
    shown = plain.finish("run", *options(tmp_path))
    assert not shown["following"] and len(shown["soups"]) == 1
    soup = shown["soup"]
    process = killed.start("run", *options(tmp_path))
    killed.kill_when(process, lambda ledger: any(run.id != soup and run.iteration > 0 for run in ledger.runs.list()))
    killed.kill_a_driver()
    killed.kill_when(killed.start("resume", soup), lambda ledger: ledger.events.of_kind(soup, POINT))
    assert killed.finish("resume", soup)["soups"] == shown["soups"]
    assert killed.digests() == plain.digests()
