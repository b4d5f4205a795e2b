"""Checkpoints in MLflow's model registry: a registered model per run, a version per checkpoint, and the aliases.

Consumes outbox rows of the kinds `checkpoint` and `alias`, each with a complete description of its checkpoint.
Produces an external model (its files stay where YATT stored them), a version of it, tags and aliases. Every
delivery may be repeated: model and version are searched for by the checkpoint's id before they are created, and
a move of an alias has no effect if a later move has superseded it.
"""

from __future__ import annotations

import json
from typing import Any

from flows.run.protocols import OutboxItem

ID_TAG = "yatt.outbox_id"
MANIFEST_TAG = "yatt.manifest_sha256"
STATE_TAG = "yatt.state"
EXTERNAL_TAG = "mlflow.model.isExternal"
FACTS = ("branch", "iteration", "term", "folder", "weights_digest")
READY = "READY"
PRUNED, DELETED = "pruned", "deleted"


def alias_tag(alias: str) -> str:
    """Returns the registered model's tag that records who last moved an alias, and why."""
    return f"yatt.alias.{alias}"


class MlflowRegistry:
    """Writes to the registry through MLflow's client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def register(self, item: OutboxItem, tracking_run: str) -> None:
        """Ensures that the checkpoint has a version, with a tag for whether its files are kept; pruned is final."""
        version = self._version(item, tracking_run)
        if item.body["state"] == PRUNED:
            self._client.set_model_version_tag(item.body["model"], version.version, STATE_TAG, PRUNED)

    def point(self, item: OutboxItem, tracking_run: str) -> None:
        """Points the alias to the checkpoint's version; tags of version and model record when, by whom and why."""
        body, name = item.body, item.body["model"]
        version = self._version(item, tracking_run)
        tag = alias_tag(body["alias"])
        if self._last_move(name, tag) >= body["number"]:
            return
        said = {key: body[key] for key in ("number", "iteration", "branch", "by", "why", "at")}
        text = json.dumps(said, ensure_ascii=False)
        self._client.set_registered_model_alias(name, body["alias"], version.version)
        self._client.set_model_version_tag(name, version.version, tag, text)
        # Last, because this tag marks the move as complete, so it is not repeated.
        self._client.set_registered_model_tag(name, tag, text)

    def mark_deleted(self, tracking_run: str) -> None:
        """Tags the versions that a tracking run has registered as those of a deleted run."""
        for version in self._client.search_model_versions(f"run_id = '{tracking_run}'"):
            self._client.set_model_version_tag(version.name, version.version, STATE_TAG, DELETED)

    def _last_move(self, name: str, tag: str) -> int:
        """Returns the number of the alias's last move; 0 if the tag, which people can edit, has none."""
        said = self._client.get_registered_model(name).tags.get(tag)
        try:
            return int(json.loads(said)["number"]) if said else 0
        except (ValueError, KeyError, TypeError):
            return 0

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
            tags=_tags(item) | {"yatt.model_id": model.model_id, STATE_TAG: body["state"]},
            description=f"The weights of {item.run} after iteration {body['iteration']}",
        )

    def _ensure_registered(self, item: OutboxItem) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(item.body["model"], tags={"yatt.run": item.run})
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
        return self._client.finalize_logged_model(model.model_id, READY)


def _tags(item: OutboxItem) -> dict[str, str]:
    facts = {f"yatt.{name}": str(item.body[name]) for name in FACTS}
    return facts | {"yatt.run": item.run, ID_TAG: item.body["version_id"], MANIFEST_TAG: item.body["manifest_sha256"]}
