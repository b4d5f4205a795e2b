"""The metrics that `/metrics` exports: name, kind, labels and help of each, in one place.

The collector exports them, alert rules and Grafana dashboards query them, and tests compare all three. Units and
suffixes (`_seconds`, `_timestamp_seconds`, `_ratio`, `_total`) follow Prometheus's conventions. The run is a
label; the iteration never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "info"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric.

    name: its name without the suffix that its kind adds (`_total`, `_info`).
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def exported(self) -> str:
        """The name as it appears in a query."""
        return self.name + {"gauge": "", "counter": "_total", "info": "_info"}[self.kind]


BUILD = MetricName("yatt_build", "info", (), "Versions of YATT and of its ledger.")
LEDGER_UP = MetricName("yatt_ledger_up", "gauge", (), "1 if the ledger answers; otherwise nothing else is exported.")
RUNS = MetricName("yatt_runs", "gauge", ("state",), "Runs in the ledger by state.")
RUNS_LEFT_OUT = MetricName("yatt_runs_left_out", "gauge", (), "Number of runs without their own series (the oldest).")
QUEUE_ENTRIES = MetricName("yatt_queue_runs", "gauge", ("state",), "Runs in the queue by state: waiting, running.")
QUEUE_WAIT = MetricName("yatt_queue_longest_wait_seconds", "gauge", (), "Longest time that a waiting run has waited.")
QUEUE_HELD = MetricName("yatt_queue_held_devices", "gauge", ("pool",), "Devices that runs of the queue hold, by pool.")
QUEUE_AWAY = MetricName("yatt_queue_away_devices", "gauge", ("pool",), "Devices that are reclaimed or broken, by pool.")
QUEUE_SCHEDULER = MetricName("yatt_queue_scheduler_up", "gauge", (), "1 if a live scheduler holds the queue's lease.")
APPROVALS = MetricName("yatt_approvals_open", "gauge", ("kind",), "Approvals that wait for somebody, by what asked.")
APPROVAL_WAIT = MetricName(
    "yatt_approvals_longest_wait_seconds", "gauge", (), "Longest time that an approval has waited."
)
STATE = MetricName("yatt_run_state", "gauge", ("run", "state"), "1 for the run's current state.")
DRIVEN = MetricName("yatt_run_driven", "gauge", ("run",), "1 if a live process holds the run's lease.")
DRIVER_LOST = MetricName(
    "yatt_run_driver_lost", "gauge", ("run",), "1 if the driver disappeared without an orderly end."
)
STOP_ASKED = MetricName("yatt_run_stop_asked", "gauge", ("run",), "1 if the run was asked to stop.")
ITERATION = MetricName("yatt_run_iteration", "gauge", ("run",), "Newest committed iteration; -1 before the first.")
TARGET = MetricName("yatt_run_target_iterations", "gauge", ("run",), "The run's target number of iterations.")
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
EXPECTED = MetricName(
    "yatt_run_expected_end_timestamp_seconds",
    "gauge",
    ("run",),
    "When a driven run reaches its target at its rate.",
)
DEADLINE = MetricName("yatt_run_deadline_timestamp_seconds", "gauge", ("run",), "A driven run's deadline.")
LEARNING = MetricName("yatt_run_learning", "gauge", ("run", "metric"), "A learning metric of the newest iteration.")
WAITING = MetricName(
    "yatt_run_waiting_since_timestamp_seconds",
    "gauge",
    ("run", "dependency"),
    "Since when the run waits for something outside that is away.",
)
OUTBOX = MetricName("yatt_run_outbox_pending_rows", "gauge", ("run",), "Outbox rows that are not delivered yet.")
FAILED = MetricName(
    "yatt_run_failed_attempts", "counter", ("run", "phase", "failure_class"), "Failed attempts at phases."
)
ALARMS = MetricName(
    "yatt_run_alarms", "counter", ("run", "rule", "action"), "Alarms raised by guards, by requested action."
)
COST = MetricName(
    "yatt_run_cost", "gauge", ("run", "project", "owner", "currency"), "Money charged for the run so far."
)
DEVICE_SECONDS = MetricName(
    "yatt_run_device_seconds",
    "gauge",
    ("run", "project", "owner"),
    "Seconds times devices that the run has held so far.",
)
CARBON = MetricName(
    "yatt_run_carbon_grams", "gauge", ("run", "project", "owner"), "Grams of CO2 emitted for the run so far."
)
ETTR = MetricName(
    "yatt_run_effective_training_time_ratio",
    "gauge",
    ("run",),
    "Recent productive time as a fraction of all time except idle time.",
)
TIME_SHARE = MetricName(
    "yatt_run_time_ratio", "gauge", ("run", "bucket"), "Recent fraction of the wall time by bucket."
)
