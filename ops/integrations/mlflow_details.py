"""What makes a run readable in MLflow: note, data, files of its folder as artifacts, tables of evaluations, images of samples.

Consumes outbox rows of the kinds `note`, `datasets`, `file`, `table` and `images`. Every delivery may be repeated: a note
replaces the part of the description that an earlier note wrote, and keeps what people added; MLflow stores a dataset of the same
name and digest once; a file replaces the artifact of the same name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.reports.learning_curve import can_draw
from ops.integrations.image_sheets import picture_of
from ops.integrations.table_pictures import figure_of
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.workloads.images import IMAGES, ImageFolder
from yatt_core.workloads.listings import decode_listing

log = logging.getLogger("yatt_core.outbox")
NOTE_TAG = "mlflow.note.content"
TABLES_TAG = "mlflow.loggedArtifacts"
USE_TAG = "mlflow.data.context"
BEGIN = "<!-- yatt: begin -->"
END = "<!-- yatt: end -->"
SHOWN_DIGEST = 16
"""MLflow allows digests of at most 36 characters; the whole one is in the profile."""


def with_note(old: str, text: str) -> str:
    """Returns a description with a new note: in place of the last one, else after what people have written."""
    block = f"{BEGIN}\n{text}\n{END}"
    before, found, rest = old.partition(BEGIN)
    if found and END in rest:
        return before + block + rest.partition(END)[2]
    return f"{old}\n\n{block}" if old.strip() else block


def send_note(client: Any, run: str, text: str) -> None:
    """Writes the note into the run's description."""
    old = client.get_run(run).data.tags.get(NOTE_TAG, "")
    new = with_note(old, text)
    if new != old:
        client.set_tag(run, NOTE_TAG, new)


def send_datasets(client: Any, run: str, datasets: list[Mapping[str, Any]]) -> None:
    """Records the run's datasets: name, digest, place, number of rows, and what each is used for."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(
                name=each["name"],
                digest=each["digest"][:SHOWN_DIGEST],
                source_type="local",
                source=json.dumps({"uri": each["path"]}),
                profile=json.dumps({"num_rows": each["rows"], "sha256": each["digest"]}),
            ),
            [InputTag(USE_TAG, each["use"])],
        )
        for each in datasets
    ]
    client.log_inputs(run, datasets=inputs)


def send_file(client: Any, run: str, folder: Path, body: Mapping[str, Any]) -> None:
    """Stores a file of the run's folder as an artifact; a file that is no longer there is skipped.

    body: `name` of the artifact, `path` of the file in the folder, `table` if it is a table of MLflow's format.

    Raises `InfrastructureError` for a path that leaves the folder.
    """
    file = _file_of(folder, body["path"])
    if file is None:
        return
    below = str(Path(body["name"]).parent)
    client.log_artifact(run, str(file), None if below == "." else below)
    if body.get("table"):
        _mark_table(client, run, body["name"])


def send_table(client: Any, run: str, folder: Path, body: Mapping[str, Any]) -> None:
    """Stores a table of an evaluation: as the newest one of its name, and with its iteration, also as a picture.

    body: `name`, `iteration`, and `path` of the file in the run's folder.

    Without matplotlib there is no picture. Raises as `send_file` does.
    """
    file = _file_of(folder, body["path"])
    if file is None:
        return
    data = file.read_bytes()
    name = f"evaluation/{body['name']}"
    step = f"{name}/{body['iteration']:06d}"
    for each in (name, step):
        client.log_text(run, data.decode(), f"{each}.json")
    _mark_table(client, run, f"{name}.json")
    if can_draw():
        figure = figure_of(decode_listing(data, str(file)), f"{body['name']}, iteration {body['iteration']}")
        if figure is not None:
            client.log_figure(run, figure, f"{step}.png")


def send_images(client: Any, run: str, folder: Path, body: Mapping[str, Any]) -> None:
    """Stores images of an iteration's samples as one picture.

    body: `iteration`, and `folder` and `sha256` of the images: the folder of the columns in the run's folder, and the digest
        of the images' manifest.

    Images that are no longer there, damaged, or of which nothing can be drawn, are skipped with a warning, as everything is
    without matplotlib. Raises as `send_file` does.
    """
    if not can_draw():
        return
    iteration = body["iteration"]
    try:
        opened = ImageFolder.open(_within(folder, body["folder"]), body["sha256"])
        picture = picture_of(opened, f"samples of iteration {iteration}: prompt and mean reward")
    except DataError as error:
        log.warning("MLflow does not receive the images of iteration %d: %s", iteration, error)
        return
    if picture is not None:
        client.log_image(run, picture, artifact_file=f"{IMAGES}/{iteration:06d}.png")


def _within(folder: Path, path: str) -> Path:
    """Returns a path below the run's folder. Raises `InfrastructureError` for one that leaves it."""
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise InfrastructureError(f"{path}: not a file of the run's folder {folder}")
    return place


def _file_of(folder: Path, path: str) -> Path | None:
    """Returns a file of the run's folder; None, with a warning, if it is no longer there.

    Raises `InfrastructureError` for a path that leaves the folder.
    """
    file = _within(folder, path)
    if not file.is_file():
        log.warning("%s is no longer there: MLflow does not receive it", file)
        return None
    return file


def _mark_table(client: Any, run: str, name: str) -> None:
    """Adds an artifact to the run's list of tables, which MLflow's pages show as such."""
    said = client.get_run(run).data.tags.get(TABLES_TAG, "[]")
    mark = {"path": name, "type": "table"}
    try:
        tables = json.loads(said)
    except ValueError:  # people can edit the tag
        tables = []
    if mark not in tables:
        client.set_tag(run, TABLES_TAG, json.dumps([*tables, mark]))
