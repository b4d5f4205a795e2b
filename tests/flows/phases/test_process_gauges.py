"""Memory by process and the least busy device, from the actors' answers."""

from __future__ import annotations

from flows.phases.process_gauges import process_gauges
from tests.services import ROOT
from yatt_core.actors.use_meter import ProcessUse
from yatt_core.protocols.receipts import Holdings
from yatt_core.run_actors.process_use import process_names
from yatt_core.spec import load_spec
from yatt_core.spec.sections.metric_names import is_timing


def test_actors_that_take_turns_on_a_device_are_busy_together() -> None:
    gigabyte = 10**9
    used = {
        "rollout-0": ProcessUse(60.0, Holdings(("0",), 2 * gigabyte, 8 * gigabyte)),
        "trainer-0": ProcessUse(30.0, Holdings((), gigabyte, 0)),
        "rollout-1": ProcessUse(2.0, Holdings()),
        "trainer-1": ProcessUse(1.5, Holdings()),
        "controller-0": ProcessUse(None, Holdings((), gigabyte, 0)),
    }
    gauges = process_gauges(used)
    assert gauges["devices/least_utilization_percentage"] == 3.5
    assert gauges["devices/rollout-0/utilization_percentage"] == 60.0
    assert gauges["memory/rollout-0/host_megabytes"] == 2000.0
    assert gauges["memory/rollout-0/device_megabytes"] == 8000.0
    assert gauges["memory/controller-0/host_megabytes"] == 1000.0
    assert "memory/trainer-0/device_megabytes" not in gauges, "it holds none"
    assert gauges["memory/driver/host_megabytes"] > 10.0
    assert all(is_timing(name) for name in gauges)
    assert "devices/least_utilization_percentage" not in process_gauges({}), "nobody knows"


def test_the_processes_of_a_spec_are_watched() -> None:
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["controllers.count=2", "rollout.engine.instances=2"])
    names = {"driver", "trainer-0", "rollout-0", "rollout-1", "controller-0", "controller-1"}
    assert set(process_names(spec)) == names
