"""Checkpoints in MLflow's model registry: a registered model per spec, a version per checkpoint, and the aliases.

Consumes outbox rows of the kinds `checkpoint` and `alias`, each with a complete description of its checkpoint.
Produces an external model (its files stay where YATT stored them), a version of it, tags and aliases. Every
delivery may be repeated: model and version are searched for by the checkpoint's id before they are created, and
a move of an alias has no effect if a later move has superseded it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from db.write.aliases import CHAMPION, ROLLBACK
from flows.delivery.registry import version_key
from flows.run.protocols import OutboxItem
from ops.integrations.mlflow_keys import accepted_key
from yatt_core.spec.sections.metric_names import is_timing

ID_TAG = "yatt.outbox_id"
MANIFEST_TAG = "yatt.manifest_sha256"
STATE_TAG = "yatt.state"
EXTERNAL_TAG = "mlflow.model.isExternal"
RUN_TAG = "yatt.run"
SPEC_TAG = "yatt.spec"
MODEL_TAG = "yatt.model_id"
SCORES = {"yatt.accuracy": "evaluation/accuracy", "yatt.reward": "reward/mean"}
"""Tags of a version by which versions can be compared at a glance, and their metrics."""
POINTS_PER_BATCH = 1000
FACTS = ("branch", "iteration", "term", "folder", "weights_digest")
READY = "READY"
PRUNED = "pruned"
DELETED = "deleted"


def alias_tag(alias: str) -> str:
    """Returns the registered model's tag that records who last moved an alias, and why."""
    return f"yatt.alias.{alias}"


class MlflowRegistry:
    """Writes to the registry through MLflow's client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def register(self, item: OutboxItem, tracking_run: str) -> None:
        """Ensures that the checkpoint has a version, with a tag for whether its files are kept; pruned is final.

        The version receives the metrics of its iteration, if that has been committed; else `measure` adds them.
        """
        version = self._version(item, tracking_run)
        if item.body["state"] == PRUNED:
            self._client.set_model_version_tag(item.body["model"], version.version, STATE_TAG, PRUNED)
        elif item.body.get("measured_at") is not None:
            self._measure(version, tracking_run, item.body, item.body["measured_at"])

    def measure(self, item: OutboxItem, tracking_run: str) -> None:
        """Gives the metrics of an iteration to its checkpoints that are registered already."""
        for term in item.body.get("checkpoint_terms", ()):
            key = version_key(item.run, item.body["branch"], item.body["iteration"], term)
            for version in self._client.search_model_versions(f"tag.`{ID_TAG}` = '{key}'"):
                if version.run_id == tracking_run:
                    self._measure(version, tracking_run, item.body, item.at_ms)

    def _measure(self, version: Any, tracking_run: str, body: Mapping[str, Any], at_ms: int) -> None:
        from mlflow.entities import Metric

        model = version.tags[MODEL_TAG]
        step = body["iteration"]
        results = {key: value for key, value in body["metrics"].items() if not is_timing(key)}
        points = [Metric(accepted_key(key), value, at_ms, step, model_id=model) for key, value in results.items()]
        for start in range(0, len(points), POINTS_PER_BATCH):
            self._client.log_batch(tracking_run, metrics=points[start : start + POINTS_PER_BATCH])
        for name, key in SCORES.items():
            if key in results:
                self._client.set_model_version_tag(version.name, version.version, name, f"{results[key]:.6g}")

    def point(self, item: OutboxItem, tracking_run: str) -> None:
        """Points the alias to the checkpoint's version; tags of version and model record when, by whom and why.

        Runs of a spec share the model: the newest promotion of any of them counts, and a champion of another run becomes
        the rollback version.
        """
        body = item.body
        name = item.body["model"]
        version = self._version(item, tracking_run)
        tag = alias_tag(body["alias"])
        model = self._client.get_registered_model(name)
        if _is_overtaken(item, model.tags.get(tag)):
            return
        said = {key: body[key] for key in ("number", "iteration", "branch", "by", "why", "at")} | {"run": item.run}
        text = json.dumps(said, ensure_ascii=False)
        champion = model.aliases.get(CHAMPION)
        if body["alias"] == CHAMPION and champion is not None:
            before = self._client.get_model_version(name, champion)
            if before.tags.get(RUN_TAG) != item.run:
                self._client.set_registered_model_alias(name, ROLLBACK, champion)
        self._client.set_registered_model_alias(name, body["alias"], version.version)
        self._client.set_model_version_tag(name, version.version, tag, text)
        # Last, because this tag marks the move as complete, so it is not repeated.
        self._client.set_registered_model_tag(name, tag, text)

    def mark_deleted(self, tracking_run: str) -> None:
        """Tags the versions that a tracking run has registered as those of a deleted run."""
        for version in self._client.search_model_versions(f"run_id = '{tracking_run}'"):
            self._client.set_model_version_tag(version.name, version.version, STATE_TAG, DELETED)

    def _version(self, item: OutboxItem, tracking_run: str) -> Any:
        body = item.body
        wanted = f"name = '{body['model']}' and tag.`{ID_TAG}` = '{body['version_id']}'"
        for found in self._client.search_model_versions(wanted):
            # Another home may also deliver a run of the same name to this server.
            if found.tags.get(MANIFEST_TAG) == body["manifest_sha256"]:
                return found
        self._ensure_registered(item)
        model = self._external_model(item, tracking_run)
        # Not `models:/...`, because MLflow's SQL store resolves such an address in the process's default store.
        return self._client.create_model_version(
            body["model"],
            source=model.artifact_location,
            run_id=tracking_run,
            model_id=model.model_id,
            tags=_tags(item) | {MODEL_TAG: model.model_id, STATE_TAG: body["state"]},
            description=f"The weights of {item.run} after iteration {body['iteration']}",
        )

    def _ensure_registered(self, item: OutboxItem) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(
                item.body["model"],
                tags={SPEC_TAG: item.body["model"]},
                description=f"Checkpoints of the runs of {item.body['model']}. The files stay where YATT stored them: "
                "`yatt export RUN --alias champion` writes a Hugging Face folder.",
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _external_model(self, item: OutboxItem, tracking_run: str) -> Any:
        """Returns MLflow's model of the checkpoint, finalized; reuses a model that an earlier delivery created.

        Such a delivery may have ended after it created the model but before it created the version.
        """
        body = item.body
        experiment = self._client.get_run(tracking_run).info.experiment_id
        wanted = f"tags.`{ID_TAG}` = '{body['version_id']}' AND tags.`{MANIFEST_TAG}` = '{body['manifest_sha256']}'"
        found = self._client.search_logged_models([experiment], wanted)
        model = (
            found[0]
            if found
            else self._client.create_logged_model(
                experiment,
                name=f"{item.run}-b{body['branch']}-i{body['iteration']}-t{body['term']}",
                source_run_id=tracking_run,
                tags=_tags(item) | {EXTERNAL_TAG: "true"},
            )
        )
        outputs = self._client.get_run(tracking_run).outputs
        if model.model_id not in {each.model_id for each in (outputs.model_outputs if outputs else ())}:
            from mlflow.entities import LoggedModelOutput

            self._client.log_outputs(tracking_run, [LoggedModelOutput(model.model_id, body["iteration"])])
        return self._client.finalize_logged_model(model.model_id, READY)


def _is_overtaken(item: OutboxItem, said: str | None) -> bool:
    """Returns True if a later move of the alias is complete: of the same run by its number, of another by its time.

    said: the tag of the last complete move, which people can edit.
    """
    try:
        last = json.loads(said) if said else {}
        if last.get("run", item.run) == item.run:
            return int(last.get("number", 0)) >= int(item.body["number"])
        return int(last["at"]) > int(item.body["at"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _tags(item: OutboxItem) -> dict[str, str]:
    facts = {f"yatt.{name}": str(item.body[name]) for name in FACTS}
    return facts | {RUN_TAG: item.run, ID_TAG: item.body["version_id"], MANIFEST_TAG: item.body["manifest_sha256"]}
