"""Work of trainer and controllers on both tiers, as scenarios for a child process that is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import s3fs  # noqa: F401 - imported once, before the children fork

from tests.checkpoints.scenarios import FOLDER, IDENTITY, NEEDED, write
from yatt_core.checkpoints.publish import publish_checkpoint
from yatt_core.checkpoints.retention import delete_checkpoint
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.storage.objects import ObjectStore
from yatt_core.storage.run_store import ObjectRunStore

SETTINGS = "settings.json"


def tell_children(folder: Path, url: str, environment: dict[str, str]) -> None:
    """Writes the settings with which scenarios below a folder reach the store."""
    (folder / SETTINGS).write_text(json.dumps({"url": url, "environment": environment}))


def store_for(folder: Path) -> ObjectRunStore:
    """Returns the durable tier of a run folder, whose settings are next to the folder."""
    settings = json.loads((folder.parent / SETTINGS).read_text())
    os.environ.update(settings["environment"])
    return ObjectRunStore(ObjectStore(settings["url"]), folder)


def publish(folder: Path, tell: Callable[[str], None]) -> None:
    """Publishes a checkpoint on both tiers."""
    publish_on_both(folder)
    tell("published")


def publish_on_both(folder: Path) -> CheckpointReceipt:
    """Publishes a checkpoint on both tiers and returns its receipt."""
    receipt = publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    store_for(folder).publish(FOLDER)
    return receipt


def delete(folder: Path, tell: Callable[[str], None]) -> None:
    """Deletes a checkpoint from both tiers."""
    delete_checkpoint(folder, FOLDER)
    store_for(folder).remove(FOLDER)
    tell("deleted")
