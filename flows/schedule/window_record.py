"""What the audit chain says of the windows of a run: which flow run began it, in which process, until when, and why it was left.

Consumes and produces links of the run's chain. A window is recorded before it asks for the lease, so a process that dies at any
later moment can be told from one that is at work, and a window that did nothing has its reason beside it.
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
    """A window that a flow run began. process: where it runs. recorded_at: milliseconds since 1970."""

    flow_run: str
    window: Window
    process: Holder
    recorded_at: int


def record_window(ledger: Ledger, run: str, flow_run: str, window: Window, process: Holder) -> None:
    """Says that a flow run has begun its window. Raises `RunNotFound`."""
    ends = None if window.ends is None else window.ends.isoformat()
    body = {"flow_run": flow_run, "begins": window.begins.isoformat(), "ends": ends, "process": asdict(process)}
    ledger.events.append(run, BEGAN, body)


def record_left(ledger: Ledger, run: str, flow_run: str, why: str) -> None:
    """Says why a window drove nothing."""
    ledger.events.append(run, LEFT, {"flow_run": flow_run, "why": why})


def recorded_windows(ledger: Ledger, run: str) -> Mapping[str, WindowRecord]:
    """The windows that were begun, by flow run."""
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
    """The window of whoever holds the lease; None where that is no window, or has not booked its session yet."""
    line = ledger.overview.line(run)
    holding = [session.flow_run_id for session in ledger.overview.sessions(run) if session.term == line.term]
    record = recorded_windows(ledger, run).get(holding[0]) if holding and line.holder is not None else None
    return None if record is None else record.window
