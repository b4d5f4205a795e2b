"""The metrics that `/metrics` exports: name, kind, labels and help of each, in one place.

The collector fills them, alert rules and Grafana dashboards ask for them; tests compare all three. Base units, `_seconds`,
`_timestamp_seconds`, `_ratio`, `_total` as Prometheus's conventions have them. A run is a label, an iteration never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "info"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric. name: without the suffix that its kind adds (`_total`, `_info`)."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def exported(self) -> str:
        """The name as a query has it."""
        return self.name + {"gauge": "", "counter": "_total", "info": "_info"}[self.kind]


BUILD = MetricName("yatt_build", "info", (), "Version of YATT and of its ledger.")
LEDGER_UP = MetricName("yatt_ledger_up", "gauge", (), "1 if the ledger answers; without it nothing else is exported.")
RUNS = MetricName("yatt_runs", "gauge", ("state",), "Runs in the ledger by state.")
RUNS_LEFT_OUT = MetricName("yatt_runs_left_out", "gauge", (), "Runs without series of their own: the oldest.")
STATE = MetricName("yatt_run_state", "gauge", ("run", "state"), "1 for the state that the run is in.")
DRIVEN = MetricName("yatt_run_driven", "gauge", ("run",), "1 if somebody alive holds the run's lease.")
DRIVER_LOST = MetricName("yatt_run_driver_lost", "gauge", ("run",), "1 if the lease ran out without being given back.")
STOP_ASKED = MetricName("yatt_run_stop_asked", "gauge", ("run",), "1 if the run is asked to stop.")
ITERATION = MetricName("yatt_run_iteration", "gauge", ("run",), "Newest committed iteration; -1 before the first.")
TARGET = MetricName("yatt_run_target_iterations", "gauge", ("run",), "Iterations that the run is to reach.")
CREATED = MetricName("yatt_run_created_timestamp_seconds", "gauge", ("run",), "When the run was created.")
COMMITTED = MetricName(
    "yatt_run_last_commit_timestamp_seconds", "gauge", ("run",), "When the newest iteration was committed."
)
CHECKPOINT = MetricName(
    "yatt_run_last_checkpoint_timestamp_seconds", "gauge", ("run",), "When the newest checkpoint was recorded."
)
ITERATION_SECONDS = MetricName(
    "yatt_run_iteration_seconds", "gauge", ("run",), "Mean duration of the newest iterations."
)
LEFT_SECONDS = MetricName(
    "yatt_run_left_seconds", "gauge", ("run",), "Time to the target at the pace of the newest iterations."
)
LEARNING = MetricName("yatt_run_learning", "gauge", ("run", "metric"), "A metric of learning, of the newest iteration.")
OUTBOX = MetricName("yatt_run_outbox_pending_rows", "gauge", ("run",), "Rows that the tracker was not told of yet.")
FAILED = MetricName(
    "yatt_run_failed_attempts", "counter", ("run", "phase", "failure_class"), "Attempts at phases that failed."
)
ALARMS = MetricName(
    "yatt_run_alarms", "counter", ("run", "rule", "action"), "Alarms that guards raised, by what they ask for."
)
ETTR = MetricName(
    "yatt_run_effective_training_time_ratio", "gauge", ("run",), "Productive time over all but idle time, lately."
)
TIME_SHARE = MetricName("yatt_run_time_ratio", "gauge", ("run", "bucket"), "Share of the wall time by bucket, lately.")
