"""The inputs of a workload of one's own: built once by its class, kept with the run, and verified before each start.

Consumes a spec, and the run's folder. Produces `inputs/` there: the files that the class has written and, last, the manifest
with the SHA-256 of each. The folder appears complete or not at all; a complete one is never built again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from yatt_core.digests import file_sha256, json_digest
from yatt_core.durable import make_folder, refusals, sync_file, sync_folder, write_json
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.identity import identity
from yatt_core.inputs.manifest import INPUTS, MANIFEST, START, read_manifest
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.finding import called, make_workload, verify_workload
from yatt_core.workloads.starting import copy_start

NO_PROMPTS = {"train_sizes": [], "held_out_prompts": 0, "probe_prompts": 0}


def materialise_workload(spec: RunSpec, run_folder: Path) -> InputsReceipt:
    """Builds a workload's inputs, or verifies existing ones. Only one process at a time, the run's owner, may call it.

    Raises `ConfigurationError` for a class that fails and for inputs that were built for other settings, and `DataError` for
    damaged inputs.
    """
    folder = run_folder / INPUTS
    verify_workload(spec, run_folder)
    if not folder.exists():
        with refusals(f"{folder}: cannot be created"):
            _make(spec, run_folder, folder)
    sync_folder(run_folder)  # also for an existing folder: the process that renamed it may have died before syncing
    manifest = read_manifest(folder, spec)
    for name, sha256 in manifest["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise DataError(f"{folder / name} is missing or damaged; restore it, or start a new run")
    return InputsReceipt(
        folder=INPUTS,
        model_path="",
        manifest_sha256=file_sha256(folder / MANIFEST),
        data_digest=manifest["data_digest"],
        train_prompts=0,
        held_out_prompts=0,
        probe_prompts=0,
        vocabulary=0,
        parameters=0,
    )


def _require_plain(spec: RunSpec, folder: Path) -> None:
    """Raises `ConfigurationError` unless a folder is there with what can be kept by digest: files with names in UTF-8."""
    place = f"workload.kind: {spec.workload.title}: build_inputs"
    if folder.is_symlink() or not folder.is_dir():
        raise ConfigurationError(f"{place} has removed the folder that it got; expected files in it")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not name.isprintable():
            raise ConfigurationError(f"{place} has made {name!r:.200}; expected names of printable characters in UTF-8")
        if path.is_symlink():
            raise ConfigurationError(
                f"{place} has made a link, {name}; expected files alone, since what a link points to may change"
            )
        if not path.is_file() and not path.is_dir():
            raise ConfigurationError(
                f"{place} has made {name}, which is neither a file nor a folder; expected files alone"
            )


def _make(spec: RunSpec, run_folder: Path, folder: Path) -> None:
    """Has the files written to a temporary folder, the manifest last; syncs it and renames it into place."""
    make_folder(run_folder)
    temporary = run_folder / f".{INPUTS}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        called(spec, make_workload(spec, run_folder).build_inputs, temporary)
        _require_plain(spec, temporary)
        for name in (MANIFEST, START):
            if (temporary / name).exists():
                raise ConfigurationError(
                    f"workload.kind: {spec.workload.title} has written {name}; expected another name"
                )
        start = spec.workload.start
        begins = {} if start is None else {START: copy_start(Path(start.path), temporary / START)}
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        files = {path.relative_to(temporary).as_posix(): file_sha256(path) for path in paths}
        for path in paths:
            sync_file(path)
        for below, _, _ in os.walk(temporary, topdown=False):
            sync_folder(Path(below))
        write_json(
            temporary / MANIFEST,
            {
                "identity": identity(spec),
                "files": files,
                "data_digest": json_digest(files),
                "model_path": "",
                **NO_PROMPTS,
                **begins,
            },
        )
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
