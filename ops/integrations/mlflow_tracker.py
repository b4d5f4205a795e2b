"""Implements the flow's `Tracker` with MLflow: one MLflow run per YATT run, with a nested one per rollback.

Consumes outbox rows in order; produces MLflow runs, params, tags, points and artifacts, and through
`mlflow_registry` model versions and aliases. Every delivery may be repeated: the run is searched for by its
row's key and its owner before it is created, a point keeps its row's time and step, and everything else is
overwritten. Works with MLflow's SQL stores and servers. mlflow is imported at the first delivery, because the
import takes seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from db.write import outbox
from flows.delivery import registry
from flows.phases import evaluation_tables, image_sheets
from flows.run.protocols import OutboxItem
from ops.integrations import mlflow_details
from ops.integrations.mlflow_database import begin_database
from ops.integrations.mlflow_keys import accepted_key
from ops.integrations.mlflow_registry import POINTS_PER_BATCH, MlflowRegistry
from yatt_core.errors import InfrastructureError, RefusedRowError
from yatt_core.logs import redact
from yatt_core.variables import default_variables

OUTBOX_TAG = "yatt.outbox_id"
OWNER_TAG = "yatt.owner"
PARENT_TAG = "mlflow.parentRunId"
KIND_TAG = "mlflow.experimentKind"
KIND = "custom_model_development"
"""The tag of an experiment whose runs train models, so that MLflow's pages show runs and metrics and not traces."""
PARAMS_PER_BATCH = 100
LONGEST_PARAM = 6000
LONGEST_TAG = 8000
OF_FILES = {
    "file": mlflow_details.send_file,
    evaluation_tables.KIND: mlflow_details.send_table,
    image_sheets.KIND: mlflow_details.send_images,
}
"""What sends the rows that name files of the run's folder, by their kind."""
ACTIVE = "active"
REFUSED_CODE = "INVALID_PARAMETER_VALUE"
"""MLflow's code for what it refuses because of the request's contents, and for requests on a run that was deleted."""
# mlflow accepts only the literal `true`. A dead server must cost seconds, not minutes, as the outbox retries anyway.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class MlflowTracker:
    """Delivers to an MLflow store or server.

    artifacts: the folder for artifacts if no server stores them, in the home folder beside the runs' folders.
    """

    def __init__(self, tracking_uri: str, artifacts: Path) -> None:
        self._tracking_uri = tracking_uri
        self._artifacts = artifacts
        # MLflow reads them in the thread that delivers, which should not change the environment.
        default_variables(ENVIRONMENT)

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        """Sends rows of one run in order; returns `EXPERIMENT/RUN`, by MLflow's ids, by the key of the row that creates it.

        Raises `RefusedRowError` if MLflow refuses a row for what it says, and `InfrastructureError` if MLflow cannot be reached
        or has no active run for the rows; rows that had arrived may be sent again.
        """
        try:
            return self._delivered(items)
        except RefusedRowError:
            self._require_active(items)
            raise

    def _delivered(self, items: list[OutboxItem]) -> Mapping[str, str]:
        made: dict[str, str] = {}
        with self._translated():
            for kind, group in groupby(items, key=lambda item: item.kind):
                rows = list(group)
                if kind == "metrics":
                    self._send_points(rows)
                    continue
                for item in rows:
                    if kind == "run":
                        made[item.key] = self._find_run(item) or self._create_run(item)
                    elif kind == "deleted":
                        self._delete_runs(item)
                    else:
                        self._send(item)
        return made

    def _require_active(self, items: list[OutboxItem]) -> None:
        """Raises `InfrastructureError` if MLflow refuses rows because their run was deleted there: it can be restored."""
        for run in sorted({item.tracking_run for item in items if item.tracking_run is not None}):
            with self._translated():
                stage = self._client.get_run(run).info.lifecycle_stage
            if stage != ACTIVE:
                raise InfrastructureError(
                    f"MLflow at {redact(self._tracking_uri)}: the run {run} is {stage}; restore it "
                    f"(mlflow runs restore --run-id {run})"
                )

    def cut(self) -> None:
        """Does nothing: MLflow keeps a point that is sent again as one point."""

    def close(self) -> None:
        """Does nothing: each request stands alone."""

    def check_reachable(self) -> None:
        """Raises `InfrastructureError` unless MLflow answers."""
        with self.client() as client:
            client.search_experiments(max_results=1)

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Opens MLflow's client; translates its errors into `InfrastructureError`."""
        with self._translated():
            yield self._client

    @cached_property
    def _client(self) -> Any:
        from mlflow.tracking import MlflowClient

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        if urlsplit(self._tracking_uri).scheme not in ("http", "https"):
            begin_database(self._tracking_uri)
        return MlflowClient(tracking_uri=self._tracking_uri)

    @cached_property
    def _registry(self) -> MlflowRegistry:
        return MlflowRegistry(self._client)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except InfrastructureError:
            raise
        # MlflowException is importable only with mlflow; MLflow's SQL store passes SQLAlchemy's errors through.
        except (_mlflow_exception(), SQLAlchemyError, OSError) as error:
            refused = getattr(error, "error_code", None) == REFUSED_CODE
            said = redact(f"MLflow at {self._tracking_uri}: {_first_line(error)}")
            raise (RefusedRowError if refused else InfrastructureError)(said) from error

    def _find_run(self, item: OutboxItem) -> str | None:
        """Returns `EXPERIMENT/RUN` of the run that an earlier delivery of this row created, if its answer was lost."""
        experiment = self._client.get_experiment_by_name(item.body["experiment"])
        if experiment is None:
            return None
        wanted = f"tags.`{OUTBOX_TAG}` = '{item.key}' AND tags.`{OWNER_TAG}` = '{item.body['owner']}'"
        found = self._client.search_runs([experiment.experiment_id], wanted, order_by=["attributes.start_time ASC"])
        return f"{experiment.experiment_id}/{found[0].info.run_id}" if found else None

    def _delete_runs(self, item: OutboxItem) -> None:
        """Marks every MLflow run of a deleted run as deleted, and the model versions that they have registered."""
        found = [self._client.get_experiment_by_name(name) for name in item.body["experiments"]]
        experiments = [experiment.experiment_id for experiment in found if experiment is not None]
        wanted = f"tags.`{OWNER_TAG}` = '{item.body['owner']}'"
        for run in self._client.search_runs(experiments, wanted) if experiments else ():
            self._registry.mark_deleted(run.info.run_id)
            self._client.delete_run(run.info.run_id)

    def _create_run(self, item: OutboxItem) -> str:
        experiment = self._experiment(item.body["experiment"])
        tags = {
            OUTBOX_TAG: item.key,
            OWNER_TAG: item.body["owner"],
            "mlflow.source.name": "yatt",
            "mlflow.source.type": "JOB",
        }
        tags |= {accepted_key(key): str(value)[:LONGEST_TAG] for key, value in item.body.get("tags", {}).items()}
        if item.tracking_run is not None:
            tags[PARENT_TAG] = item.tracking_run
        run = self._client.create_run(experiment, start_time=item.at_ms, tags=tags, run_name=item.body["name"])
        return f"{experiment}/{run.info.run_id}"

    def _experiment(self, name: str) -> str:
        """Returns the experiment's id; creates the experiment if it does not exist.

        The artifacts of a new experiment are stored in YATT's folder, unless a server stores them.
        """
        found = self._client.get_experiment_by_name(name)
        if found is None:
            served = urlsplit(self._tracking_uri).scheme in ("http", "https")
            location = None if served else self._artifacts.absolute().as_uri()
            try:
                return str(self._client.create_experiment(name, artifact_location=location, tags={KIND_TAG: KIND}))
            except _mlflow_exception() as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(name)
        if found.lifecycle_stage == "deleted":
            raise InfrastructureError(
                f"MLflow at {redact(self._tracking_uri)}: experiment {name!r} was deleted; restore it "
                f"(mlflow experiments restore -x {found.experiment_id}), or name another in tracking.experiment"
            )
        if not found.tags.get(KIND_TAG):
            self._client.set_experiment_tag(found.experiment_id, KIND_TAG, KIND)
        return str(found.experiment_id)

    def _send_points(self, items: Sequence[OutboxItem]) -> None:
        """Sends points as (key, their row's time, iteration, value), so sending one again changes nothing."""
        from mlflow.entities import Metric

        points = [
            Metric(accepted_key(key), value, item.at_ms, item.body["iteration"])
            for item in items
            for key, value in item.body["metrics"].items()
        ]
        for start in range(0, len(points), POINTS_PER_BATCH):
            batch = points[start : start + POINTS_PER_BATCH]
            self._client.log_batch(_tracking_run(items[0]), metrics=batch)
        for item in items:
            self._registry.measure(item, _tracking_run(item))

    def _send(self, item: OutboxItem) -> None:
        run = _tracking_run(item)
        match item.kind:
            case "params":
                self._send_params(run, item.body)
            case "tags":
                from mlflow.entities import RunTag

                tags = [RunTag(accepted_key(key), str(value)[:LONGEST_TAG]) for key, value in item.body.items()]
                self._client.log_batch(run, tags=tags)
            case outbox.CHECKPOINT:
                self._registry.register(item, run)
            case registry.ALIAS:
                self._registry.point(item, run)
            case "note":
                mlflow_details.send_note(self._client, run, item.body["text"])
            case "datasets":
                mlflow_details.send_datasets(self._client, run, item.body["datasets"])
            case kind if kind in OF_FILES:
                OF_FILES[kind](self._client, run, self._artifacts.parent / item.run, item.body)
            case "artifact":
                self._client.log_text(run, item.body["text"], item.body["name"])
            case "status" if item.body["status"] == "RUNNING":
                self._client.update_run(run, status="RUNNING")
            case "status":
                self._client.set_terminated(run, status=item.body["status"], end_time=item.at_ms)
            case _:
                raise InfrastructureError(
                    f"outbox row {item.key}: this tracker does not support the kind {item.kind!r}"
                )

    def _send_params(self, run: str, params: Mapping[str, Any]) -> None:
        """Sends params; MLflow keeps a param's first value for ever and accepts the same value again."""
        from mlflow.entities import Param

        listed = [Param(accepted_key(key), str(value)[:LONGEST_PARAM]) for key, value in params.items()]
        for start in range(0, len(listed), PARAMS_PER_BATCH):
            self._client.log_batch(run, params=listed[start : start + PARAMS_PER_BATCH])


def _mlflow_exception() -> type[Any]:
    from mlflow.exceptions import MlflowException

    exception: type[Any] = MlflowException
    return exception


def _tracking_run(item: OutboxItem) -> str:
    if item.tracking_run is None:
        raise InfrastructureError(f"outbox row {item.key}: the MLflow run of {item.run} has not been created yet")
    return item.tracking_run


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
