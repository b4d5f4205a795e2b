"""The windows of a run in its audit chain: flow run, process, end of the window, and why it did not drive the run.

Consumes and produces links of the run's chain. A window is recorded before it requests the lease, so a process that
dies afterwards can be distinguished from a working one. A window that did nothing has a recorded reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from db.core.holder import Holder
from db.ledger import Ledger
from flows.driver.windows import Window

BEGAN, LEFT = "window", "window_left"


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window that a flow run has begun.

    process: the process that drives it.
    recorded_at: milliseconds since 1970.
    """

    flow_run: str
    window: Window
    process: Holder
    recorded_at: int


def record_window(ledger: Ledger, run: str, flow_run: str, window: Window, process: Holder) -> None:
    """Records that a flow run has begun its window. Raises `RunNotFound`."""
    ends = None if window.ends is None else window.ends.isoformat()
    body = {"flow_run": flow_run, "begins": window.begins.isoformat(), "ends": ends, "process": asdict(process)}
    ledger.events.append(run, BEGAN, body)


def record_left(ledger: Ledger, run: str, flow_run: str, why: str) -> None:
    """Records why a window did not drive its run."""
    ledger.events.append(run, LEFT, {"flow_run": flow_run, "why": why})


def recorded_windows(ledger: Ledger, run: str) -> Mapping[str, WindowRecord]:
    """Returns the recorded windows, by flow run."""
    return {
        link.body["flow_run"]: WindowRecord(
            link.body["flow_run"], _window(link.body), Holder(**link.body["process"]), link.at
        )
        for link in ledger.events.of_kind(run, BEGAN)
    }


def _window(body: Mapping[str, Any]) -> Window:
    ends = body["ends"]
    return Window(datetime.fromisoformat(body["begins"]), None if ends is None else datetime.fromisoformat(ends))


def window_of_holder(ledger: Ledger, run: str) -> Window | None:
    """Returns the window of the lease's holder; None if it has no window, or has not recorded its session yet."""
    line = ledger.overview.line(run)
    holding = [session.flow_run_id for session in ledger.overview.sessions(run) if session.term == line.term]
    record = recorded_windows(ledger, run).get(holding[0]) if holding and line.holder is not None else None
    return None if record is None else record.window
