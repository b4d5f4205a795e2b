"""The windows of a run in its audit chain: flow run, process, parameters, end, and why one did not drive the run.

Consumes and produces links of the run's chain. A window is recorded before it requests the lease, so a process that
dies afterwards can be distinguished from a working one. A window that did nothing has a recorded reason. A window that
starts a new run is recorded in both chains, and the chain of the deployment's run names the new run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from db.core.holder import Holder
from db.ledger import Ledger
from flows.driver.windows import Window
from flows.schedule.parameters import NEW

BEGAN = "window"
LEFT = "window_left"
NEW_RUN = "window_new_run"
NONE_GIVEN: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window that a flow run has begun.

    process: the process that drives it.
    recorded_at: milliseconds since 1970.
    parameters: the given parameters (`flows.schedule.parameters`).
    """

    flow_run: str
    window: Window
    process: Holder
    recorded_at: int
    parameters: Mapping[str, Any]


def record_window(
    ledger: Ledger,
    run: str,
    flow_run: str,
    window: Window,
    process: Holder,
    parameters: Mapping[str, Any] = NONE_GIVEN,
) -> None:
    """Records that a flow run has begun its window. Raises `RunNotFound`."""
    ends = None if window.ends is None else window.ends.isoformat()
    body = {"flow_run": flow_run, "begins": window.begins.isoformat(), "ends": ends, "process": asdict(process)}
    ledger.events.append(run, BEGAN, body | {"parameters": dict(parameters)})


def record_left(ledger: Ledger, run: str, flow_run: str, why: str) -> None:
    """Records why a window did not drive its run."""
    ledger.events.append(run, LEFT, {"flow_run": flow_run, "why": why})


def record_refused(
    ledger: Ledger, run: str, flow_run: str, why: str, failure_class: str, parameters: Mapping[str, Any]
) -> None:
    """Records that a window did nothing because of its parameters."""
    body = {"flow_run": flow_run, "why": why, "failure_class": failure_class, "parameters": dict(parameters)}
    ledger.events.append(run, LEFT, body)


def record_new_run(ledger: Ledger, run: str, flow_run: str, made: str) -> None:
    """Records the new run that a window of this run's deployment drives."""
    ledger.events.append(run, NEW_RUN, {"flow_run": flow_run, "run": made})


def driven_run(ledger: Ledger, run: str, flow_run: str) -> str:
    """Returns the run that a window of this run's deployment drives: the run itself, or the new run it has started."""
    started = [link.body["run"] for link in ledger.events.of_kind(run, NEW_RUN) if link.body["flow_run"] == flow_run]
    return str(started[0]) if started else run


def makers_of_new_runs(ledger: Ledger) -> list[str]:
    """Returns the runs whose deployments have made new runs, or were asked to, as far as windows of them have begun; sorted."""
    return [
        run
        for run in ledger.events.runs_with(BEGAN, NEW_RUN)
        if ledger.events.of_kind(run, NEW_RUN)
        or any(given.get("run") == NEW for given in window_parameters(ledger, run).values())
    ]


def recorded_windows(ledger: Ledger, run: str) -> Mapping[str, WindowRecord]:
    """Returns the recorded windows, by flow run, in the order in which they began."""
    return {
        link.body["flow_run"]: WindowRecord(
            flow_run=link.body["flow_run"],
            window=_window(link.body),
            process=Holder(**link.body["process"]),
            recorded_at=link.at,
            parameters=link.body.get("parameters", NONE_GIVEN),
        )
        for link in ledger.events.of_kind(run, BEGAN)
    }


def window_parameters(ledger: Ledger, run: str) -> Mapping[str, Mapping[str, Any]]:
    """Returns the given parameters of the recorded windows that had any, by flow run."""
    return {key: record.parameters for key, record in recorded_windows(ledger, run).items() if record.parameters}


def _window(body: Mapping[str, Any]) -> Window:
    ends = body["ends"]
    return Window(datetime.fromisoformat(body["begins"]), None if ends is None else datetime.fromisoformat(ends))


def window_of_holder(ledger: Ledger, run: str) -> Window | None:
    """Returns the window of the lease's holder; None if it has no window, or has not recorded its session yet."""
    line = ledger.overview.line(run)
    holding = [session.flow_run_id for session in ledger.overview.sessions(run) if session.term == line.term]
    record = recorded_windows(ledger, run).get(holding[0]) if holding and line.holder is not None else None
    return None if record is None else record.window
