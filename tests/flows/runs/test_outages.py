"""A judge's endpoint that is away: the run waits, asks for nothing twice, and ends with the bits of an undisturbed run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flows.branching.branches import revise
from flows.placement.seats import SEATS
from ops.queries.score_efforts import costly_scores
from tests.flows.tools import Driver, same_result
from tests.judges.server import Reply, Server, completion, serving
from tests.waiting import wait_until

RULE = {"name": "rule", "function": "virtual_score"}


def judge(url: str) -> dict[str, Any]:
    return {
        "name": "others", "kind": "endpoint", "url": url, "model": "m", "template": "{prompt} {response}", "seeded": True,
        "retries": 1, "backoff_seconds": 0.05, "prices": {"prompt": 2.0, "completion": 10.0},
    }  # fmt: skip


def create(driver: Driver, server: Server, *changes: str) -> str:
    parts = f"rewards.parts={json.dumps([RULE, judge(server.url)])}"
    return driver.create("virtual.yaml", parts, "evaluation.every=0", "iterations=2", *changes)


@contextmanager
def endpoint(*away: threading.Event) -> Iterator[tuple[Server, set[int]]]:
    """Serves a judge whose answer follows from the question; yields it and the seeds that were answered.

    away: the judge answers nothing until these are set.
    """
    answered: set[int] = set()

    def answer(body: dict[str, Any], number: int) -> Reply:
        if not all(event.is_set() for event in away):
            return Reply(503)
        if "seed" in body:
            assert body["seed"] not in answered, "asked again although the answer was durable"
            answered.add(body["seed"])
        text = body["messages"][0]["content"]
        return Reply(body=completion("yes" if (len(text) + body.get("seed", 0)) % 2 else "no"))

    with serving(answer) as server:
        yield server, answered


def states(driver: Driver, run: str) -> list[str]:
    with driver.ledger() as ledger:
        return [event.body["reason"] for event in ledger.events.of_kind(run, "state")]


def check_effort(driver: Driver, run: str, server: Server) -> None:
    """Checks what the run says it took to ask the endpoint, and that its runs share a file about the endpoint's limits."""
    with driver.ledger() as ledger:
        found = {key: sum(value for _, value in ledger.metrics.history(run, key)) for key in ledger.metrics.latest(run)}
        scores = costly_scores(ledger, driver.home, run, 1, 2, limit=3)
    asked = len(server.bodies)
    assert found["endpoints/others/requests"] == found["endpoints/others/status/200"] == asked
    assert found["endpoints/others/cost"] == pytest.approx(asked * (11 * 2.0 + 3 * 10.0) / 1e6)
    assert found["endpoints/others/latency_p95"] >= found["endpoints/others/latency_p50"] > 0.0
    assert len(scores.slowest) == len(scores.dearest) == 3 and scores.slowest[0]["prompt_id"]
    assert (driver.home.folder / "endpoints").is_dir()


def set_once_devices_are_given_back(driver: Driver, run: str, back: threading.Event) -> None:
    with driver.ledger() as ledger:
        wait_until(lambda: any(row.returned_at for row in ledger.waits.of([run]).values()), seconds=120.0)
    back.set()


def check_devices(driver: Driver, run: str) -> None:
    """Checks that actors on devices ended while the run waited, after a checkpoint, and that the others stayed."""
    with driver.ledger() as ledger:
        *_, before, after = (
            {seat["actor"]: seat["id"] for seat in link.body["seats"]} for link in ledger.events.of_kind(run, SEATS)
        )
        taken = {row.iteration for row in ledger.records.own_checkpoints(run)}
        assert not ledger.waits.of([run])
    replaced = {name.rpartition("-")[0] for name in before if before[name] != after[name]}
    assert replaced == {"trainer", "rollout"} and len(after) > len(replaced)
    assert 0 in taken
    (said,) = (reason for reason in states(driver, run) if "its devices are given back" in reason)
    assert said.startswith("waiting for judge 'others' at ")


# tests/flows/driver/test_outages.py shows each step of it in simulated time, and tests/cluster/test_away.py what the actors do:
# the error that reaches the driver, whether the judge is back, and that only actors on devices end and are made again.
@pytest.mark.timeout(300)
@pytest.mark.verify
def test_a_run_waits_for_a_judge_and_ends_with_the_bits_of_an_undisturbed_one(driver: Driver) -> None:
    with endpoint() as (server, asked):
        quiet = create(driver, server)
        driver.drive(quiet)
        check_effort(driver, quiet, server)
    back = threading.Event()
    with endpoint(back) as (server, answered):
        run = create(driver, server, "recovery.wait_hours=1e-4")
        driver.drive(run, expect=4)
        assert any(
            reason.startswith("waiting for judge 'others' at http://127.0.0.1") for reason in states(driver, run)
        )
        assert "waited for 0.0001 h" in states(driver, run)[-1]
        with driver.ledger() as ledger:
            attempts = ledger.phases.attempts(run, 0, 1)
            assert {row.failure_class for row in attempts if row.failure_class} == {"away"}
        threading.Thread(target=set_once_devices_are_given_back, args=(driver, run, back), daemon=True).start()
        revise(driver.home, run, ["recovery.wait_hours=1", "recovery.hold_minutes=0.01"])
        driver.drive(run)
    check_devices(driver, run)
    assert same_result(driver.results(quiet), driver.results(run))
    assert len(answered) == len(asked) > 0
    assert states(driver, run)[-1] == "target reached"
