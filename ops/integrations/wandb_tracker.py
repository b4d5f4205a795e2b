"""Implements the flow's `Tracker` with Weights & Biases: a W&B run for each run and each branch.

Consumes outbox rows; produces history, config and notes on W&B's servers, or in files for `wandb sync`. wandb accepts points
into memory, sends them from a process of its own, and loses them if that is killed. A delivery therefore returns only when its
points are durable: online, when the service shows their step; offline, when the run's file contains it. If it fails before
that, or the lease is lost, wandb's process is killed, so that no point arrives late; the rows are sent again, and whoever opens
the run leaves out the steps that it has. wandb is imported at the first delivery.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from flows.run.home import Home
from flows.run.protocols import OutboxItem
from ops.integrations.wandb_log import TransactionLog, last_step_on_disk
from yatt_core.errors import InfrastructureError
from yatt_core.logs import redact
from yatt_core.variables import default_variables

log = logging.getLogger("yatt_core.outbox")
ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "DO_NOT_TRACK": "true"}
INIT_SECONDS = 30.0
FINISH_SECONDS = 20.0
CONFIRM_SECONDS = 30.0
ANSWER_SECONDS = 10
LONGEST_DELIVERY_SECONDS = 2 * (ANSWER_SECONDS + INIT_SECONDS) + CONFIRM_SECONDS + ANSWER_SECONDS + FINISH_SECONDS
"""A run is opened, its points are not confirmed in time, it is finished, and opened again."""
POLL_SECONDS = {"online": 2.0, "offline": 0.1}
FLUSH_SECONDS = 0.2
"""Interval at which wandb writes the points of an offline run to its file."""
ENDED = {"FINISHED": 0, "SCHEDULED": 0, "FAILED": 1, "KILLED": 1}
"""wandb's exit code by the status of a run that is over."""
SERVICE = "wandb-core"
CUT = "Weights & Biases: this session no longer sends anything"
SENT = ("params", "metrics", "note", "status")
SETTINGS: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "program": "yatt",
    "silent": True,
    "reinit": "create_new",
    "resume": "allow",
    "init_timeout": INIT_SECONDS,
    "finish_timeout": FINISH_SECONDS,
    "finish_timeout_raises": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "x_file_stream_transmit_interval": 5.0,
}
"""Nothing but the run's own data leaves the machine: no code, console, git state, machine data or packages."""


@dataclass(slots=True)
class OpenRun:
    """A W&B run that this process writes.

    last: the newest step that is durable or was passed to wandb.
    confirm: returns the newest durable step.
    """

    handle: Any
    last: int
    confirm: Callable[[], int]


class WandbReader:
    """Asks W&B what it shows of a run.

    path: `ENTITY/PROJECT/ID`.
    key: the API key; None: wandb's own choice.
    """

    def __init__(self, path: str, key: str | None = None) -> None:
        self._path = path
        self._key = key

    @cached_property
    def _run(self) -> Any:
        import wandb

        return wandb.Api(api_key=self._key, timeout=ANSWER_SECONDS).run(self._path)

    def step(self) -> int:
        """Returns the last step of the run's history."""
        return int(self._run.lastHistoryStep)


class WandbTracker:
    """Delivers to Weights & Biases.

    mode: `online`, or `offline` to write files below the run's folder.
    entity: the user or team that owns the project; None for the key's default.
    key: the API key, which is passed to wandb and written nowhere; empty: wandb's own choice.
    """

    def __init__(self, home: Home, mode: str = "online", entity: str | None = None, key: str = "") -> None:
        self._home = home
        self._mode = mode
        self._entity = entity
        self._key = key or None
        self._runs: dict[str, OpenRun] = {}
        self._is_cut = threading.Event()
        # W&B reads them in the thread that delivers, which should not change the environment.
        default_variables(ENVIRONMENT)

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        """Sends rows of one run in order and waits until they are durable; returns `PROJECT/ID` for a row that creates one.

        Raises `InfrastructureError` if W&B cannot be reached or does not confirm the rows.
        """
        made = {item.key: tracked_name(item) for item in items if item.kind == "run"}
        rows = [item for item in items if item.kind in SENT]
        if rows:
            name = rows[0].tracking_run
            if name is None:
                raise InfrastructureError(f"outbox row {rows[0].key}: the W&B run of {rows[0].run} does not exist yet")
            if self._is_cut.is_set():
                raise InfrastructureError(CUT)
            with self._translated():
                self._send(name, rows)
        return made

    def cut(self) -> None:
        """Kills wandb's process; from now on, every delivery fails."""
        self._is_cut.set()
        kill_service()

    def close(self) -> None:
        """Finishes the runs that this process has open; all that they were sent is durable."""
        if self._is_cut.is_set():
            self._drop()
        for run in self._runs.values():
            with suppress(*wandb_errors()):
                run.handle.finish(exit_code=0)
        self._runs.clear()

    def _send(self, name: str, rows: list[OutboxItem]) -> None:
        run = self._runs.get(name) or self._open(name, rows[0].run)
        exit_code = None
        described = False
        for item in rows:
            match item.kind:
                case "metrics":
                    step = item.body["iteration"]
                    if step > run.last:
                        points = {**item.body["metrics"], "_timestamp": item.at_ms / 1000}
                        run.handle.log(points, step=step, commit=True)
                        run.last = step
                case "params":
                    run.handle.config.update(dict(item.body), allow_val_change=True)
                    described = True
                case "note":
                    run.handle.notes = item.body["text"]
                    described = True
                case "status":
                    exit_code = ENDED.get(item.body["status"])
        if exit_code is not None:
            self._finish(name, exit_code)
        elif described or not self._confirmed(run):
            # Only finishing guarantees config and notes; the run is then open again, as it goes on.
            self._finish(name, 0)
            self._open(name, rows[0].run)

    def _confirmed(self, run: OpenRun) -> bool:
        """Waits until the newest step is durable; returns False if that takes too long."""
        until = time.monotonic() + CONFIRM_SECONDS
        while run.confirm() < run.last:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS[self._mode])
        return True

    def _finish(self, name: str, exit_code: int) -> None:
        """Finishes a run, after which all that it was sent is durable."""
        self._runs[name].handle.finish(exit_code=exit_code)
        del self._runs[name]

    def _drop(self) -> None:
        """Forgets the open runs, and whatever wandb has not sent of them: its rows are not marked as delivered."""
        if self._runs:
            import wandb

            self._runs.clear()
            kill_service()
            with suppress(*wandb_errors()):  # so that the next delivery starts another process
                wandb.teardown()

    def _open(self, name: str, run: str) -> OpenRun:
        project, _, run_id = name.rpartition("/")
        folder = self._home.run_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        offline = self._mode == "offline"
        import wandb

        on_disk = last_step_on_disk(folder / "wandb", run_id) if offline else 0
        if not offline:
            check_reachable(wandb.setup().settings.base_url)
        settings = wandb.Settings(
            **SETTINGS,
            mode=self._mode,
            project=project,
            entity=self._entity,
            run_id=run_id,
            run_name=display_name(run_id),
            run_group=run,
            root_dir=str(folder),
            api_key=self._key,
            **({"x_transaction_log_flush_interval": FLUSH_SECONDS} if offline else {"x_skip_transaction_log": True}),
        )
        handle = wandb.init(settings=settings)
        if offline:
            file = TransactionLog(Path(handle.settings.sync_file))
            opened = OpenRun(handle, on_disk, lambda: max(on_disk, file.read()))
        else:
            last = handle.starting_step - 1
            service = WandbReader(handle.path, self._key)
            opened = OpenRun(handle, last, lambda: max(last, service.step()))
        self._runs[name] = opened
        if self._is_cut.is_set():  # wandb's process may have started after it
            raise InfrastructureError(CUT)
        return opened

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._drop()  # whatever failed, the next attempt opens the run anew
            if not isinstance(error, wandb_errors()):
                raise
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise InfrastructureError(f"Weights & Biases: {redact(said)}") from error


def kill_service() -> None:
    """Kills the process through which wandb sends everything that this process logs; does nothing if there is none."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name() == SERVICE:
                child.kill()
                child.wait(FINISH_SECONDS)


def wandb_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that wandb raises if its process or its service is away or refuses something."""
    from wandb.errors import Error
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError, WandbAttachFailedError
    from wandb.sdk.lib.service.service_token import WandbServiceConnectionError
    from wandb.sdk.mailbox.mailbox import MailboxClosedError
    from wandb.sdk.mailbox.mailbox_handle import HandleAbandonedError, ServerResponseError

    return (
        *(Error, OSError),
        *(HandleAbandonedError, MailboxClosedError, ServerResponseError),
        *(WandbApiFailedError, WandbAttachFailedError, WandbServiceConnectionError),
    )


def tracked_name(item: OutboxItem) -> str:
    """Returns `PROJECT/ID` for a row that creates a run: the same each time, and unique beyond this ledger."""
    digest = hashlib.sha256(f"{item.body['owner']} {item.key}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", item.body["name"])[:50]
    return f"{item.body['experiment']}/{readable}-{digest}"


def display_name(run_id: str) -> str:
    """Returns the name under which W&B shows a run: its id without the digest."""
    return run_id.rpartition("-")[0]


def check_reachable(address: str) -> None:
    """Raises `InfrastructureError` unless something answers, since wandb itself would wait for minutes."""
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_SECONDS):
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"Weights & Biases at {redact(address)}: {error}") from error
