"""The traces of a real run that is killed and resumed: one for each iteration, with every phase and the actors' work."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tests.flows.tools import Driver, same_result
from tests.tracing.receiver import otlp_receiver

PHASES = ("place", "collect", "prepare", "learn", "sync", "commit")
LAST = 4


@pytest.mark.verify
def test_traces_change_no_result(driver: Driver) -> None:
    plain, traced = (driver.create("virtual.yaml", f"iterations={LAST}") for _ in range(2))
    driver.drive(plain)
    with otlp_receiver() as received:
        driver.environment |= {"YATT_OTLP": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": received.address}
        driver.drive(traced)
    assert received.spans and same_result(driver.results(traced), driver.results(plain))


def test_a_killed_and_resumed_run_has_one_trace_for_each_iteration(driver: Driver) -> None:
    with otlp_receiver() as received:
        driver.environment |= {"YATT_OTLP": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": received.address}
        run = driver.create("virtual.yaml", f"iterations={LAST}")
        driver.drive_until_killed(run, "learn:2")
        driver.end_actors(run)
        driver.drive(run)
    # A span may arrive twice, from a killed driver and from the next one, which knows it from the ledger.
    ids = {span.id: span for span in received.spans}
    spans = [span for span in ids.values() if "yatt.iteration" in span.attributes]
    traces = defaultdict(set)
    for span in spans:
        traces[span.attributes["yatt.iteration"]].add(span.trace)
    assert sorted(traces) == list(range(LAST + 1)) and all(len(found) == 1 for found in traces.values())
    assert len(set.union(*traces.values())) == LAST + 1
    of = {iteration: trace for iteration, (trace,) in traces.items()}
    attempts = [span for span in spans if "yatt.attempt" in span.attributes]
    found = Counter(
        (each.attributes["yatt.iteration"], each.name, each.attributes["yatt.attempt"]) for each in attempts
    )
    made = {(iteration, row.phase, row.number) for iteration in of for row in driver.attempts(run, iteration)}
    assert found == Counter(made), "every attempt at every phase, once"
    for iteration in range(1, LAST + 1):
        roots = {span.id for span in spans if span.name == f"iteration {iteration}"}
        own = [span for span in attempts if span.trace == of[iteration]]
        assert len(roots) == 1 and {span.parent for span in own} == roots
        done = Counter(span.name for span in own if span.attributes["yatt.outcome"] == "done")
        assert set(PHASES) <= done.keys() and (iteration == 2 or set(done.values()) == {1})
    (lost,) = [span for span in spans if span.attributes.get("yatt.outcome") == "driver lost"]
    (again,) = [
        span for span in received.named("learn")
        if span.name == "learn" and span.attributes["yatt.iteration"] == 2 and span.attributes["yatt.outcome"] == "done"
    ]  # fmt: skip
    assert (lost.name, lost.trace, lost.attributes["yatt.attempt"], lost.attributes["yatt.term"]) == (
        "learn", again.trace, 1, 1,
    )  # fmt: skip
    assert (again.attributes["yatt.attempt"], again.attributes["yatt.term"]) == (2, 2)
    for name, phase in (("trainer.learn", "learn"), ("controller.collect", "collect"), ("rollout.generate", "collect")):
        above = [ids[span.parent] for span in received.named(name) if span.parent in ids]
        names = {span.name.rpartition(".")[2] for span in above}
        assert phase in names, name
    assert {span.resource["yatt.run"] for span in received.spans} == {run}
    assert any(trace == of[3] for _, trace, _ in received.logs)
    everything = b"".join(received.bodies)
    assert b"Spell" not in everything and b"spell" not in everything, "no prompts"
