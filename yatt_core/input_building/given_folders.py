"""Models that a spec names as folders, on nodes with disks of their own: each node has them at the same path.

Consumes the manifest of a run's inputs, which says what identifies each folder. Where a folder is missing, it is fetched
from the durable tier, to which a node that has it sends it, once a run. The functions run on the nodes themselves.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from yatt_core import durable
from yatt_core.digests import json_digest
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.inputs.manifest import GIVEN, INPUTS, JUDGES, MANIFEST
from yatt_core.manifests import entry_of_file, load_manifest, publish_manifest, verify_files
from yatt_core.models.model_folder import MARK, check_model_unchanged
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import open_store

MODELS = "models"
"""Folder on the durable tier, below the run's."""
_KIND = "model"
Folders = Mapping[str, Mapping[str, str]]
"""What identifies the contents of each folder, by its absolute path."""


def given_folders(run_folder: Path) -> Folders:
    """Returns the folders that the run's inputs name: the policy's, the judges', the teacher's and the critic's."""
    manifest = json.loads((run_folder / INPUTS / MANIFEST).read_bytes())
    others = [*manifest.get(JUDGES, {}).values(), *manifest.get(GIVEN, {}).values()]
    found = {str(each["path"]): dict(each["files"]) for each in others}
    if Path(manifest["model_path"]).is_absolute():
        found[manifest["model_path"]] = dict(manifest["model_files"])
    return found


def lacking_folders(folders: Folders) -> list[str]:
    """Returns the folders that this node lacks. Raises `ConfigurationError` for one with other contents."""
    for path, contents in folders.items():
        if Path(path).exists():
            _check(Path(path), contents)
    return [path for path in folders if not Path(path).exists()]


def send_folders(spec_json: str, run_folder: str, folders: Folders) -> None:
    """Sends folders of this node to the durable tier, unless it has them."""
    store = open_store(RunSpec.model_validate_json(spec_json), Path(run_folder))
    for path, contents in folders.items():
        name = _name(contents)
        files = {each: Path(path) / each for each in contents if each != MARK}
        if store.read(name, MANIFEST) is not None:
            continue
        with tempfile.TemporaryDirectory() as place:
            entries = {each: entry_of_file(file) for each, file in files.items()}
            publish_manifest(Path(place), _KIND, {"path": path}, entries)
            store.send(name, files)
            store.send(name, {MANIFEST: Path(place) / MANIFEST})


def bring_folders(spec_json: str, run_folder: str, folders: Folders) -> None:
    """Fetches folders to this node, each complete or not at all.

    Raises `InfrastructureError` if the durable tier lacks one or it cannot be written here, `DataError` for damaged files.
    """
    store = open_store(RunSpec.model_validate_json(spec_json), Path(run_folder))
    for path, contents in folders.items():
        target = Path(path)
        name = _name(contents)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.fetched")
        if store.read(name, MANIFEST) is None:
            raise InfrastructureError(f"{path}: this node lacks the model, and so does the object store")
        durable.make_folder(target.parent)
        try:
            with durable.refusals(f"{path}: the model cannot be fetched"):
                partial.mkdir()
                store.receive(name, {MANIFEST: partial / MANIFEST})
                entries = load_manifest(partial, _KIND).files
                for each in entries:
                    (partial / each).parent.mkdir(exist_ok=True)
                store.receive(name, {each: partial / each for each in entries})
                verify_files(partial, entries)
                (partial / MANIFEST).unlink()
                for each in entries:
                    durable.sync_file(partial / each)
                durable.sync_folder(partial)
                if not target.exists():  # another process that sees the same disk may have been faster
                    partial.rename(target)
                    durable.sync_folder(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _check(target, contents)


def senders(lacking: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns which node sends which folders, so that those that lack them can fetch them.

    lacking: the folders that each node lacks.

    Raises `ConfigurationError` for a folder that no node has.
    """
    sends: dict[str, list[str]] = {}
    for path in sorted({path for paths in lacking.values() for path in paths}):
        node = next((node for node in sorted(lacking) if path not in lacking[node]), None)
        if node is None:
            raise ConfigurationError(f"{path}: no node of the run has this model's folder; restore it on one of them")
        sends.setdefault(node, []).append(path)
    return sends


def _check(folder: Path, contents: Mapping[str, str]) -> None:
    try:
        check_model_unchanged(folder, contents)
    except ConfigurationError as error:
        raise ConfigurationError(f"on node {os.uname().nodename}: {error}") from error


def _name(contents: Mapping[str, str]) -> str:
    return f"{MODELS}/{json_digest(dict(contents))[:16]}"
