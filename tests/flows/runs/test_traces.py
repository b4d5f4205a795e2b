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
    traces: dict[str, list[str]] = defaultdict(list)
    for span in received.spans:
        if "yatt.iteration" in span.attributes and not span.name.startswith("iteration "):
            traces[span.trace].append(span.name)
    of = {
        span.attributes["yatt.iteration"]: span.trace for span in received.spans if "yatt.iteration" in span.attributes
    }
    assert len(traces) == len(of) == LAST + 1 and sorted(of) == list(range(LAST + 1))
    for iteration in range(1, LAST + 1):
        own = [span for span in received.spans if span.trace == of[iteration]]
        done = Counter(span.name for span in own if span.attributes.get("yatt.outcome") == "done")
        assert all(done[phase] == 1 for phase in PHASES), (iteration, done)
        roots = {span.id for span in own if span.name == f"iteration {iteration}"}
        assert len(roots) == 1
        attempts = [span for span in own if "yatt.attempt" in span.attributes]
        assert {span.parent for span in attempts} == roots
    (lost,) = [span for span in received.spans if span.attributes.get("yatt.outcome") == "driver lost"]
    (again,) = [
        span for span in received.named("learn")
        if span.attributes["yatt.iteration"] == 2 and span.attributes["yatt.outcome"] == "done"
    ]  # fmt: skip
    assert (lost.name, lost.trace, lost.attributes["yatt.attempt"], lost.attributes["yatt.term"]) == (
        "learn", again.trace, 1, 1,
    )  # fmt: skip
    assert (again.attributes["yatt.attempt"], again.attributes["yatt.term"]) == (2, 2)
    ids = {span.id: span for span in received.spans}
    for name, phase in (("trainer.learn", "learn"), ("controller.collect", "collect"), ("rollout.generate", "collect")):
        found = received.named(name)
        assert found, name
        assert all(ids[span.parent].trace == span.trace for span in found if span.parent in ids)
        assert any(phase in (above.name for above in (ids.get(span.parent),) if above) for span in found), name
    assert {span.resource["yatt.run"] for span in received.spans} == {run}
    assert any(trace == of[3] for _, trace, _ in received.logs)
    everything = b"".join(received.bodies)
    assert b"Spell" not in everything and b"spell" not in everything, "no prompts"
