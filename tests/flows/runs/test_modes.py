"""The central promise for each mode of asynchrony, and for modes that go together: no kill, no machine, no pause changes a bit.

Each covering run of `tests.flows.runs.modes` is driven undisturbed by one controller and one rollout instance; then killed in
every phase, on 2 controllers and 3 instances; then killed at random moments while its instances are paused at random, on 4
controllers and 2 instances.
"""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import dataclass

import pytest

from flows.run.control_state import ControlState
from flows.run.results import RunResults
from tests.flows.runs.modes import COVERING, MODES, CoveringRun, largest_sets
from tests.flows.runs.test_sliced_runs import samples_of
from tests.flows.strikes import slowed_at_random
from tests.flows.tools import SECONDS, Driver, same_result
from tests.judges.test_reward_model import make_folder
from tests.recovery.nursery import Nursery
from tests.recovery.parts import kill, living_actors
from tests.services import ROOT
from yatt_core.experience.table import STRETCH_VERSIONS

DRIVER = "driver"
STRUCK = (DRIVER, DRIVER, "rollout-", "trainer-", "controller-")
"""What is killed at random moments, in a random order: the driver, or an actor whose name begins so."""
STRIKE_SECONDS = (0.3, 3.0)


def test_what_goes_together_is_listed_and_covered() -> None:
    """What a spec accepts is what docs/recovery.md lists; each set is part of a covering run."""
    text = (ROOT / "docs" / "recovery.md").read_text().partition("### Modes that go together")[2].partition("\n#")[0]
    rows = [re.findall(r"`([\w-]+)`", line.split("|")[1]) for line in text.splitlines() if line.startswith("| `")]
    assert {frozenset(row) for row in rows} == largest_sets()
    covering = [set(run.modes) for run in COVERING]
    assert all(any(wanted <= run for run in covering) for wanted in largest_sets())
    assert set(MODES) == set().union(*covering)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A covering run that nothing has disturbed.

    spec: its spec and overrides, without controllers and instances.
    drawing: the iterations that draw.
    """

    covered: CoveringRun
    spec: tuple[str, ...]
    drawing: tuple[int, ...]
    results: RunResults


@pytest.fixture(scope="module", params=COVERING, ids=lambda run: run.name)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery
) -> Undisturbed:
    covered: CoveringRun = request.param
    folder = tmp_path_factory.mktemp("undisturbed")
    driver = Driver(folder / "runs", nursery)
    spec = covered.spec(make_folder(folder / "judge"))
    run = driver.create(*spec, "controllers.count=1", "rollout.engine.instances=1")
    driver.drive(run)
    with driver.ledger() as ledger:
        largest = {
            metric: max((value for _, value in ledger.metrics.history(run, metric)), default=0.0)
            for metric in covered.evidence
        }
        drawing = tuple(number for number in range(1, 4) if ledger.records.shards(run, 0, number))
    assert all(largest[metric] > least for metric, least in covered.evidence.items()), largest
    if covered.goes_on:
        versions = samples_of(driver, run)[STRETCH_VERSIONS].map(lambda each: len(set(each)))
        assert versions.max() > 1, "no response went on under newer weights"
    return Undisturbed(covered, spec, drawing, driver.results(run))


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_killed_in_every_phase_it_ends_with_the_same_bits(undisturbed: Undisturbed, driver: Driver) -> None:
    """Its actors are lost half-way, so that other engines and ranks continue from a checkpoint."""
    run = driver.create(*undisturbed.spec, "controllers.count=2", "rollout.engine.instances=3")
    moments = undisturbed.covered.moments(undisturbed.drawing)
    for number, moment in enumerate(moments):
        driver.drive_until_killed(run, moment)
        if number == len(moments) // 2:
            driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed.results)


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_on_slowed_engines_it_ends_with_the_same_bits(
    undisturbed: Undisturbed, driver: Driver
) -> None:
    run = driver.create(*undisturbed.spec, "controllers.count=4", "rollout.engine.instances=2")
    with slowed_at_random(driver.home.run_folder(run), seed=7):
        struck = drive_struck(driver, run, seed=11)
    assert len(struck) >= 3, "the run was over before it was struck"
    assert same_result(driver.results(run), undisturbed.results), struck


def drive_struck(driver: Driver, run: str, seed: int) -> list[str]:
    """Drives a run to its end, and kills its driver and actors of each kind at random moments; returns what was killed."""
    drawn = random.Random(seed)
    roles = drawn.sample(STRUCK, len(STRUCK))
    struck: list[str] = []
    process = driver.start(run)
    while roles:
        time.sleep(drawn.uniform(*STRIKE_SECONDS))
        if process.ended() is not None:
            break
        if roles[0] != DRIVER:
            # Actors may not have been started yet; the strike then comes at the next moment.
            name = strike_actor(driver, run, roles[0], drawn)
        else:
            process.signal(signal.SIGKILL)
            process.wait(SECONDS)
            process = driver.start(run)
            name = DRIVER
        if name:
            struck.append(name)
            roles.pop(0)
    assert process.wait(SECONDS) == 0, process.output
    return struck


def strike_actor(driver: Driver, run: str, role: str, drawn: random.Random) -> str:
    """Kills an actor of a role; returns its name, or an empty text if there is none."""
    folder = driver.home.run_folder(run)
    actors = living_actors(folder) if (folder / "logs").exists() else {}
    names = sorted(name for name in actors if name.startswith(role))
    if not names:
        return ""
    name = drawn.choice(names)
    return name if kill(actors[name]) else ""


BUFFERED = (
    "virtual.yaml",
    "asynchrony.lag=2",
    "iterations=5",
    "data.prompts_per_iteration=4",
    "rollout.slice_tokens=8",
    "rollout.max_slices=3",
    "rollout.in_flight=9",
    "rollout.engine.sigma=1.0",
    "evaluation.every=0",
    "checkpoints.every=3",
)


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_a_resume_with_a_full_buffer_and_one_with_an_empty_one_go_on(driver: Driver) -> None:
    """Full: as many iterations collected ahead, and as many groups in flight, as there may be. Empty: nothing of either."""
    quiet = driver.create(*BUFFERED)
    driver.drive(quiet)
    struck = driver.create(*BUFFERED)
    held: list[tuple[int, int]] = []
    for moment in ("committed:0", "committed:3"):
        driver.drive_until_killed(struck, moment)
        driver.end_actors(struck)
        held.append(buffered(driver, struck, int(moment.partition(":")[2])))
    driver.drive(struck)
    assert held == [(0, 0), (2, 9 - 4)], "after a commit all groups in flight are left but those that it learnt from"
    assert same_result(driver.results(struck), driver.results(quiet))


def buffered(driver: Driver, run: str, iteration: int) -> tuple[int, int]:
    """Returns how many iterations are collected ahead at a commit, and how many groups are in flight after it."""
    with driver.ledger() as ledger:
        commit = ledger.commits.at(run, iteration)
    assert commit is not None
    state = ControlState.from_json(commit.state)
    return len(state.in_flight), len(state.carried)
