"""The state of another run with which a workload begins: copied into the run's inputs, byte for byte.

Consumes the folder of a checkpoint, which some run has published. Produces a folder with its state, and what the checkpoint
says of itself. The run never reads the other one's files again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from yatt_core.checkpoints.contents import OTHERS, WEIGHTS, WORKLOAD
from yatt_core.checkpoints.publish import identity_in
from yatt_core.checkpoints.verify import CHECKPOINT_KIND
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.manifests import load_manifest, require_size, verify_files

KEY = "workload.start.path"


def copy_start(checkpoint: Path, folder: Path) -> Mapping[str, Any]:
    """Copies the state in a checkpoint; returns which run's it is, and at which iteration.

    folder: is created.

    Raises `ConfigurationError` for what is no checkpoint of a workload, and `DataError` for damaged files.
    """
    try:
        manifest = load_manifest(checkpoint, CHECKPOINT_KIND)
    except DataError as error:
        raise ConfigurationError(f"{KEY}: {error}; expected the folder of a checkpoint") from error
    identity = identity_in(manifest.fields)
    if identity is None or WORKLOAD not in manifest.files:
        raise ConfigurationError(
            f"{KEY}: {checkpoint}: holds no state of a workload; expected a checkpoint of a run with a workload of its own"
        )
    files = {
        name: entry
        for name, entry in manifest.files.items()
        if name == WORKLOAD or name.startswith((f"{WEIGHTS}/", f"{OTHERS}/"))
    }
    for name, entry in files.items():
        require_size(checkpoint / name, entry)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint / name, folder / name)
    verify_files(folder, files)
    return {"path": str(checkpoint), **asdict(identity)}
