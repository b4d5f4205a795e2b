"""What each device did in an iteration, from the recorded placement, phases and metrics of a run without judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.metrics import TIMING, Metric
from db.write.records import DecisionRow
from flows.phases.metrics import device_metrics
from flows.phases.placement import roles_by_device
from ops.dashboard.pages.charts import device_charts
from ops.dashboard.pages.device_rows import device_rows
from ops.queries import devices as devices_query
from ops.queries.devices import device_use
from ops.queries.series import KEYS
from tests.db.tools import SimulatedClock
from tests.ops.seeding import commit_of
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.spec.sections.metric_names import LEAST_BUSY

ROLES = roles_by_device("rrr", devices=3, ranks=2)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SimulatedClock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", clock=clock) as ledger:
        yield ledger


@pytest.fixture
def fence(ledger: Ledger) -> Fence:
    run = ledger.runs.create("words", {}, "d", 4).id
    fence = ledger.leases.acquire(run, this_process("a test"), 600)
    ledger.commits.commit(fence, commit_of(0))
    return fence


def work(
    ledger: Ledger,
    fence: Fence,
    clock: SimulatedClock,
    decision: Mapping[str, object],
    usage: Sequence[Usage] = (Usage(0, ROLLOUT, decode_s=2.0, prefill_s=1.0), Usage(1, ROLLOUT, decode_s=1.0)),
) -> None:
    """Commits an iteration whose phases take 4 s, 1 s, 2 s and 1 s; a second attempt at collect counts."""
    start = {"mode": "colocate", "start": "rr", "state": {}}
    ledger.records.decision(fence, DecisionRow(0, 1, 0, {}, {**start, **decision}, {}, "there are no judges"))
    failed = ledger.phases.plan(fence, 0, 1, "collect")
    ledger.phases.fail(fence, failed, "infrastructure", "an actor was lost")
    for phase, seconds in (("collect", 4), ("prepare", 1), ("learn", 2), ("sync", 1)):
        attempt = ledger.phases.plan(fence, 0, 1, phase)
        ledger.phases.dispatch(fence, attempt)
        clock.advance(seconds)
        ledger.phases.finish(fence, attempt, {}, seconds)
    of_machine = (Metric("system/cpu_utilization_percentage", 50.0, TIMING), Metric(LEAST_BUSY, 40.0, TIMING))
    found = (*commit_of(1).metrics, *device_metrics(usage), *of_machine)
    ledger.commits.commit(fence, replace(commit_of(1), metrics=found))


def test_every_device_shows_its_roles_and_how_busy_it_was(ledger: Ledger, fence: Fence, clock: SimulatedClock) -> None:
    work(ledger, fence, clock, {"roles": ROLES})
    found = device_use(ledger, fence.run, 1)
    assert (found.missing, found.seconds, found.used, len(found.devices)) == ("", 8.0, 3, 3)
    second = found.devices[1]
    assert [(span.phase, span.role, span.actor, span.start_s, span.end_s, span.busy) for span in second.spans] == [
        ("collect", "rollout", "rollout-1", 0.0, 4.0, 0.25),
        ("prepare", "trainer", "trainer-1", 4.0, 5.0, None),
        ("learn", "trainer", "trainer-1", 5.0, 7.0, None),
        ("sync", "sync", "trainer-1 to rollout-1", 7.0, 8.0, None),
    ]
    assert [(device.occupied, device.worked) for device in found.devices] == [
        (1.0, 7 / 8),
        (1.0, 5 / 8),
        (5 / 8, 5 / 8),
    ]
    assert found.metrics == (
        "devices/0/rollout_seconds",
        "devices/1/rollout_seconds",
        "system/cpu_utilization_percentage",
    )
    picture = device_rows(found, sft=False)
    assert picture.count('class="item"') == 3 and "collect by rollout-1, 0.00 to 4.00 s, busy 25%" in picture


@pytest.mark.parametrize(
    ("devices", "ranks", "collect", "learn"),
    [
        (8, 1, [["rollout-0"], ["judge-1"]], [["trainer-0"], []]),
        (8, 3, [["rollout-0"], ["judge-1"], []], [["trainer-0"], ["trainer-1"], ["trainer-2"]]),
        (1, 2, [["rollout-0", "judge-1"]], [["trainer-0", "trainer-1"]]),
    ],
)
def test_only_the_devices_that_a_run_uses_have_actors(
    devices: int, ranks: int, collect: list[list[str]], learn: list[list[str]]
) -> None:
    assert roles_by_device(ROLLOUT + JUDGE, devices, ranks) == {"collect": collect, "learn": learn}


def test_a_trainer_with_devices_of_its_own_has_the_first_ones() -> None:
    found = roles_by_device(ROLLOUT * 2, devices=9, ranks=2, before=2)
    assert found["collect"] == [[], [], ["rollout-0"], ["rollout-1"]]
    assert found["learn"] == [["trainer-0"], ["trainer-1"], [], []]
    fewer = roles_by_device(ROLLOUT * 2, devices=2, ranks=2, before=2)
    assert fewer["collect"] == [[], ["rollout-0", "rollout-1"]]


def test_an_instance_of_several_devices_is_on_each_of_them():
    found = roles_by_device(ROLLOUT + JUDGE, 5, 3, each=2)
    assert found["collect"] == [["rollout-0"], ["rollout-0"], ["judge-1"], ["judge-1"]]
    assert found["learn"] == [["trainer-0"], ["trainer-1"], ["trainer-2"], []]


def test_instances_that_share_a_device_are_shown_together(ledger: Ledger, fence: Fence, clock: SimulatedClock) -> None:
    work(ledger, fence, clock, {"roles": roles_by_device("rr", devices=1, ranks=1)})
    (device,) = device_use(ledger, fence.run, 1).devices
    collect = device.spans[0]
    assert (collect.actor, collect.busy, device.occupied) == ("rollout-0, rollout-1", 1.0, 1.0)


def test_a_large_run_shows_its_first_devices_and_the_metrics_of_all_instances_by_number(
    ledger: Ledger, fence: Fence, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices_query, "DEVICES", 2)
    instances = KEYS + 1
    work(ledger, fence, clock, {"roles": ROLES}, [Usage(number, ROLLOUT, decode_s=1.0) for number in range(instances)])
    found = device_use(ledger, fence.run, 1)
    assert (found.used, [device.number for device in found.devices]) == (3, [0, 1])
    assert found.metrics[:instances] == tuple(f"devices/{number}/rollout_seconds" for number in range(instances))
    charts = device_charts(fence.run, found.metrics)
    assert [len(chart.sources[0].names) for chart in charts] == [KEYS, 1, 1]


def test_what_is_not_recorded_is_explained(ledger: Ledger, fence: Fence, clock: SimulatedClock) -> None:
    assert "placement" in device_use(ledger, fence.run, 1).missing
    work(ledger, fence, clock, {})
    found = device_use(ledger, fence.run, 1)
    assert found.devices == () and found.missing and len(found.metrics) == 3


def test_a_run_without_judges_records_its_instances_but_no_judging() -> None:
    metrics = {each.key: each.value for each in device_metrics([Usage(0, ROLLOUT, decode_s=2.0, sequence_steps=10)])}
    assert metrics == {"devices/0/rollout_seconds": 2.0, "devices/0/tokens_per_second": 5.0}
    judged = device_metrics([Usage(0, ROLLOUT, decode_s=2.0), Usage(0, JUDGE, decode_s=1.0)])
    assert {each.key: each.value for each in judged}["devices/0/judge_seconds"] == 1.0
