"""Grafana dashboards for the metrics of `/metrics`, as JSON for provisioning: `python -m ops.metrics.grafana`.

Consumes the metric names. Produces `ops/metrics/grafana/*.json`, one dashboard per file. A test compares the
files with the output of this module, and every query with the exported metrics.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.metrics import names
from ops.metrics.names import MetricName

FOLDER = Path(__file__).with_name("grafana")
SCHEMA = 39
"""The schema version of Grafana 10 and 11, which migrate older versions themselves."""
WIDTH = 24
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RUN = 'run=~"$run"'


@dataclass(frozen=True, slots=True)
class GrafanaPanel:
    """A panel of a dashboard.

    queries: expression and legend of each query.
    unit: the name of the unit in Grafana.
    columns: width, out of 24.
    """

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "none"
    columns: int = 12


def of(metric: MetricName, *labels: str) -> str:
    """Returns the selector of a metric's series with the given labels."""
    return f"{metric.exported}{{{', '.join(labels)}}}" if labels else metric.exported


ALL_RUNS = (
    GrafanaPanel("Runs by state", "timeseries", ((of(names.RUNS), "{{state}}"),), columns=12),
    GrafanaPanel("Driven runs", "stat", ((f"sum({of(names.DRIVEN)})", "driven"),), columns=4),
    GrafanaPanel("Lost drivers", "stat", ((f"sum({of(names.DRIVER_LOST)})", "lost"),), columns=4),
    GrafanaPanel("Ledger", "stat", ((of(names.LEDGER_UP), "up"),), columns=4),
    GrafanaPanel(
        "Share of the target reached",
        "bargauge",
        ((f"{of(names.ITERATION)} / on (run) {of(names.TARGET)} and on (run) {of(names.DRIVEN)} == 1", "{{run}}"),),
        "percentunit",
    ),
    GrafanaPanel(
        "Time since the last commit",
        "timeseries",
        ((f"(time() - {of(names.COMMITTED)}) and on (run) {of(names.DRIVEN)} == 1", "{{run}}"),),
        "s",
    ),
    GrafanaPanel("Effective training time", "timeseries", ((of(names.ETTR), "{{run}}"),), "percentunit"),
    GrafanaPanel(
        "Failed attempts per hour",
        "timeseries",
        ((f"sum by (run, failure_class) (increase({of(names.FAILED)}[1h])) > 0", "{{run}} {{failure_class}}"),),
    ),
    GrafanaPanel(
        "Alarms per day",
        "timeseries",
        ((f"sum by (run, rule) (increase({of(names.ALARMS)}[1d])) > 0", "{{run}} {{rule}}"),),
    ),
    GrafanaPanel(
        "Cost per hour by project",
        "timeseries",
        (
            (
                f"sum by (project, currency) (clamp_min(deriv({of(names.COST)}[1h]), 0)) * 3600",
                "{{project}} {{currency}}",
            ),
        ),
    ),
    GrafanaPanel(
        "Devices held by owner",
        "timeseries",
        ((f"sum by (owner) (deriv({of(names.DEVICE_SECONDS)}[15m]))", "{{owner}}"),),
    ),
    GrafanaPanel(
        "Carbon by project", "timeseries", ((f"sum by (project) ({of(names.CARBON)})", "{{project}}"),), "massg"
    ),
    GrafanaPanel("Runs in the queue", "timeseries", ((of(names.QUEUE_ENTRIES), "{{state}}"),)),
    GrafanaPanel("Longest wait in the queue", "timeseries", ((of(names.QUEUE_WAIT), "longest wait"),), "s"),
    GrafanaPanel(
        "Devices of the queue's pools",
        "timeseries",
        ((of(names.QUEUE_HELD), "held {{pool}}"), (of(names.QUEUE_AWAY), "away {{pool}}")),
    ),
    GrafanaPanel("Queue's scheduler", "stat", ((of(names.QUEUE_SCHEDULER), "up"),), columns=6),
    GrafanaPanel("Approvals that wait", "timeseries", ((of(names.APPROVALS), "{{kind}}"),)),
    GrafanaPanel("Longest wait for an approval", "stat", ((of(names.APPROVAL_WAIT), "longest wait"),), "s", columns=6),
    GrafanaPanel(
        "Runs that wait for something outside",
        "timeseries",
        ((f"time() - {of(names.WAITING)}", "{{run}}, {{dependency}}"),),
        "s",
    ),
    GrafanaPanel("Undelivered outbox rows", "timeseries", ((f"{of(names.OUTBOX)} > 0", "{{run}}"),)),
    GrafanaPanel("Runs without their own series", "stat", ((of(names.RUNS_LEFT_OUT), "left out"),), columns=6),
    GrafanaPanel("Version", "stat", ((of(names.BUILD), "{{version}}, ledger {{ledger}}"),), columns=6),
)
ONE_RUN = (
    GrafanaPanel("State", "stat", ((f"{of(names.STATE, RUN)} == 1", "{{run}} {{state}}"),), columns=6),
    GrafanaPanel("Iteration", "stat", ((of(names.ITERATION, RUN), "{{run}}"),), columns=6),
    GrafanaPanel("Time left", "stat", ((of(names.LEFT_SECONDS, RUN), "{{run}}"),), "s", columns=6),
    GrafanaPanel("Age", "stat", ((f"time() - {of(names.CREATED, RUN)}", "{{run}}"),), "s", columns=6),
    *(
        GrafanaPanel(title, "timeseries", ((of(names.LEARNING, RUN, f'metric="{metric}"'), "{{run}}"),), unit)
        for title, metric, unit in (
            ("Reward", "reward/mean", "none"),
            ("Held-out accuracy", "evaluation/accuracy", "percentunit"),
            ("KL", "kl", "none"),
            ("Entropy", "entropy", "none"),
            ("Response length", "length/response_mean", "none"),
            ("Truncated responses", "truncated_fraction", "percentunit"),
            ("Gradient norm", "grad_norm", "none"),
            ("Log-probability gap between trainer and sampler", "train_rollout_logprob_diff_mean", "none"),
            ("Tokens per second", "tokens_per_second", "none"),
        )
    ),
    GrafanaPanel(
        "Time to the expected end and to the deadline",
        "timeseries",
        (
            (f"{of(names.EXPECTED, RUN)} - time()", "{{run}} expected end"),
            (f"{of(names.DEADLINE, RUN)} - time()", "{{run}} deadline"),
        ),
        "s",
    ),
    GrafanaPanel("Iteration duration", "timeseries", ((of(names.ITERATION_SECONDS, RUN), "{{run}}"),), "s"),
    GrafanaPanel(
        "Share of time by activity", "timeseries", ((of(names.TIME_SHARE, RUN), "{{run}} {{bucket}}"),), "percentunit"
    ),
    GrafanaPanel(
        "Failed attempts by phase",
        "timeseries",
        ((f"increase({of(names.FAILED, RUN)}[1h])", "{{phase}} {{failure_class}}"),),
    ),
    GrafanaPanel("Cost so far", "timeseries", ((of(names.COST, RUN), "{{run}} {{currency}}"),)),
    GrafanaPanel("Alarms so far", "timeseries", ((of(names.ALARMS, RUN), "{{run}} {{rule}} {{action}}"),)),
    GrafanaPanel(
        "Time since the last checkpoint", "timeseries", ((f"time() - {of(names.CHECKPOINT, RUN)}", "{{run}}"),), "s"
    ),
    GrafanaPanel(
        "Stop requested, driver lost",
        "timeseries",
        ((of(names.STOP_ASKED, RUN), "stop requested {{run}}"), (of(names.DRIVER_LOST, RUN), "lost {{run}}")),
    ),
)


def dashboards() -> dict[str, dict[str, Any]]:
    """Returns every dashboard by file name."""
    return {
        "runs.json": _dashboard("yatt-runs", "YATT: runs", ALL_RUNS, ()),
        "run.json": _dashboard("yatt-run", "YATT: run", ONE_RUN, (_run_variable(),)),
    }


def text_of(dashboard: dict[str, Any]) -> str:
    """Returns a dashboard in the format of its file."""
    return json.dumps(dashboard, indent=1) + "\n"


def _dashboard(
    uid: str, title: str, panels: Sequence[GrafanaPanel], variables: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["yatt"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": _placed(panels),
    }


def _run_variable() -> dict[str, Any]:
    query = f"label_values({names.ITERATION.exported}, run)"
    shown = {"name": "run", "label": "Run", "type": "query", "query": query, "datasource": SOURCE}
    return shown | {"refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 4}


def _placed(panels: Sequence[GrafanaPanel]) -> list[dict[str, Any]]:
    """Places the panels from left to right, row by row."""
    placed = []
    left = 0
    top = 0
    for number, panel in enumerate(panels, start=1):
        if left + panel.columns > WIDTH:
            left = 0
            top = top + HEIGHT
        placed.append(_panel(panel, number, left, top))
        left += panel.columns
    return placed


def _panel(panel: GrafanaPanel, number: int, left: int, top: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": SOURCE}
        for place, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.columns, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text_of(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
