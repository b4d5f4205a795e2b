"""A run whose policy calls a tool: killed between a tool's result and the next turn, and with more controllers.

With continuous batching, where each response goes from turn to turn for itself, it is killed while calls are answered.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.flows.tools import SECONDS, Driver, same_result
from tests.recovery.parts import kill, living_actors
from yatt_core.experience.chunks import read_chunk
from yatt_core.experience.telemetry import read_telemetry
from yatt_core.prompts.tool_calls import KINDS
from yatt_core.prompts.virtual_codec import VirtualCodec
from yatt_core.spec import RunSpec

SLOW = ("rollout.engine.clock_factor=1", "rollout.engine.base_seconds=0.2")
"""Duration of a turn, long enough to observe the results of the previous turn."""


JOINED = ("rollout.engine.max_num_seqs=24",)
"""With it the engines batch continuously."""
ANSWERED = 4
"""Answers on disk when such a run is killed: more than there are calls in progress at any time."""


def create(driver: Driver, file: Path, *overrides: str) -> str:
    return driver.create("tools.yaml", f"rollout.tools.functions.0.options={{file: {file}}}", *overrides)


def calls(file: Path) -> Counter[str]:
    return Counter(file.read_text().splitlines())


@pytest.mark.verify
@pytest.mark.timeout(300)
def test_killed_between_a_result_and_the_next_turn_no_tool_is_called_again(driver: Driver, tmp_path: Path) -> None:
    undisturbed = create(driver, tmp_path / "undisturbed", "controllers.count=3")
    driver.drive(undisturbed)
    check_metrics(driver, undisturbed, calls(tmp_path / "undisturbed").total())

    struck = create(driver, tmp_path / "struck", *SLOW)
    strike(driver, struck, partial(wait_for_results, driver, struck))
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(undisturbed))
    assert calls(tmp_path / "struck") == calls(tmp_path / "undisturbed"), "each call was made once"

    joined = create(driver, tmp_path / "joined", *SLOW, *JOINED, "controllers.count=2")
    strike(driver, joined, partial(wait_for_answers, driver, joined))
    driver.drive(joined)
    assert same_result(driver.results(joined), driver.results(undisturbed))
    made = calls(tmp_path / "joined")
    assert made >= calls(tmp_path / "undisturbed")
    again = (made - calls(tmp_path / "undisturbed")).total()
    assert again < ANSWERED, "only calls in progress were made again"


def strike(driver: Driver, run: str, wait: Callable[[], None]) -> None:
    """Kills a run's driver and its controllers at a moment."""
    process = driver.start(run)
    wait()
    process.signal(signal.SIGKILL)
    for name, pid in living_actors(driver.home.run_folder(run)).items():
        if name.startswith("controller"):
            kill(pid)
    assert process.wait(SECONDS) == -signal.SIGKILL, process.output


def wait_for_answers(driver: Driver, run: str) -> None:
    """Waits until enough calls have an answer on disk, while responses are still drawn."""
    folder = driver.home.run_folder(run) / "experience/b000/i000001"
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            chunks = [read_chunk(path) for path in folder.glob("w00-s*/*.answers-*.arrow")]
            if sum(chunk.table.num_rows for chunk in chunks if chunk is not None) >= ANSWERED:
                return
        time.sleep(0.01)
    raise AssertionError(f"{run}: no answers of tools were seen")


def wait_for_results(driver: Driver, run: str) -> None:
    """Waits until every call of some decode batches has its result on disk and none has its next turn."""
    folder = driver.home.run_folder(run) / "experience/b000/i000001"
    with driver.ledger() as ledger:
        spec = RunSpec.model_validate(ledger.runs.revision(run).spec)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if is_between_turns(folder, spec):
                return
        time.sleep(0.01)
    raise AssertionError(f"{run}: no results of tools were seen before the next turn")


def is_between_turns(folder: Path, spec: RunSpec) -> bool:
    names = {path.name for path in folder.glob("w00-s*/*.arrow")}
    if not any(".call-" in name for name in names) or any(".turn-01" in name for name in names):
        return False
    engine = spec.rollout.engine
    assert engine.kind == "virtual"
    codec = VirtualCodec(engine.vocabulary, spec.data.max_prompt_tokens, spec.rollout.tools, engine.tool_call_fraction)
    for turn in folder.glob("w00-s*/batch-0000.turn-00.arrow"):
        chunk = read_chunk(turn)
        assert chunk is not None
        expected = sum("<tool_call>" in codec.decode(tokens) for tokens in chunk.table["tokens"].to_pylist())
        if len(list(turn.parent.glob("*.call-*.arrow"))) < expected:
            return False
    return True


def check_metrics(driver: Driver, run: str, made: int) -> None:
    with driver.ledger() as ledger:
        history = {key: dict(ledger.metrics.history(run, key)) for key in ledger.metrics.latest(run)}
    assert all(history["turns"][step] > 1 for step in (1, 2))
    assert 0 < history["tools/calls"][1] + history["tools/calls"][2] < made, "evaluations call tools too"
    assert {f"tools/errors/{kind}" for kind in KINDS} <= history.keys()
    assert history["tools/seconds"][1] > 0
    assert history["length/policy_mean"][1] < history["length/response_mean"][1]
    assert "tools" in str(read_telemetry(driver.home.run_folder(run), 0, 1))


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_real_policy_whose_turns_join_has_the_bits_of_planned_turns_whatever_is_killed(driver: Driver) -> None:
    common = (
        "iterations=2",
        "sft.max_steps=40",
        "rollout.samples_per_prompt=8",
        "evaluation.every=0",
        "recovery.lease_seconds=5",
        "tracking.reports=false",
    )
    planned = driver.create("calculator.yaml", *common)
    driver.drive(planned)

    engine = "rollout.engine={kind: torch, instances: 2, continuous: true, max_num_seqs: 24}"
    joined = driver.create("calculator.yaml", *common, engine, "controllers.count=2")
    driver.drive_until_killed(joined, "collect:2")
    driver.end_actors(joined)
    driver.drive(joined)
    assert same_result(driver.results(joined), driver.results(planned))
    with driver.ledger() as ledger:
        assert sum(value for _, value in ledger.metrics.history(joined, "tools/calls")) > 0
