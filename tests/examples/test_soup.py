"""The example soup: its rewards, and a real soup, killed with kill -9 while it trains and while it measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from db.ledger import Ledger
from examples.soup.rewards import echo, fresh, vowels
from flows.run.home import Home
from flows.soups.record import POINT, SoupRecord
from flows.soups.spec import load_soup
from tests.carrier import SECONDS, Carrier
from tests.services import ROOT
from yatt_core.prompts.prompt import Prompt

SOUP = ROOT / "examples" / "soup" / "soup.yaml"
SMALL = (
    "iterations=4",
    "data.held_out=30",
    "data.prompts_per_iteration=8",
    "tracking.enabled=false",
    "sft.max_steps=5",
)


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


def digests(home: Home) -> object:
    with Ledger.open(home.ledger, migrate=False) as ledger:
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
    plain, killed = (Carrier("soup", tmp_path / name, service_environment) for name in ("plain", "killed"))
    shown = plain.finish("run", *options(tmp_path))
    assert not shown["following"] and len(shown["soups"]) == 1
    soup = shown["soup"]
    process = killed.start("run", *options(tmp_path))
    killed.kill_when(process, lambda ledger: any(run.id != soup and run.iteration > 0 for run in ledger.runs.list()))
    killed.kill_a_driver()
    killed.kill_when(killed.start("resume", soup), lambda ledger: ledger.events.of_kind(soup, POINT))
    assert killed.finish("resume", soup)["soups"] == shown["soups"]
    assert digests(killed.home) == digests(plain.home)
