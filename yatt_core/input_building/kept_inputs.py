"""Inputs that a home keeps: a run whose inputs would be the same copies them instead of building them.

Consumes a spec and a run's folder. Produces `inputs/` there, as `materialise` would build it, or a copy of what it has built.
Inputs are kept under a digest of all that they are made from: what building reads of the spec, the contents of the sources, the
models' small files, this code and the installed packages. Where one of these cannot be told, such as the rows of a user's
function, nothing is kept. A copy is whole if it has the files of its manifest, with the digests there, and the manifest has the
digest in the folder's name; any other copy is deleted. Nothing depends on the folder: what fails here is logged.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from yatt_core.code_revision import code_revision
from yatt_core.digests import file_sha256, json_digest, path_digest
from yatt_core.durable import make_folder, move_folder, sync_file, sync_folder, temporary_name
from yatt_core.errors import InfrastructureError
from yatt_core.inputs.identity import given_models, judge_models
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.models.model_folder import fingerprint
from yatt_core.rewards.registry import GROUP as REWARDS
from yatt_core.spec.rewards.scheme import FunctionPart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import FunctionSource, ReasoningGymSource, Source
from yatt_core.spec.sections.model import GivenFolder
from yatt_core.spec.sections.tools import ToolSpec
from yatt_core.tools.registry import GROUP as TOOLS

LARGEST_BYTES = 1 << 30
"""Of all inputs that are kept: those that were used least recently are deleted."""
FREE_SHARE = 10
"""Inputs of more than one in so many bytes that are free are not kept: the space is the run's."""
LARGEST_SOURCES = 4 << 30
"""Bytes of sources from which on nothing is kept: their digest takes seconds of each start."""
ABANDONED_SECONDS = 24 * 3600.0
"""Age of a copy in the making from which on its process is dead."""
UNREAD = frozenset(
    {
        "algorithm", "billing", "callbacks", "checkpoints", "controllers", "dynamic_sampling", "evaluation", "exact", "gates",
        "guards", "iterations", "name", "placement", "recovery", "retention", "storage", "tracking", "trainer",
    }
)  # fmt: skip
"""Sections of a spec that building reads nothing of, except what `inputs_key` adds."""

log = logging.getLogger(__name__)


def inputs_key(spec: RunSpec) -> str | None:
    """Returns the digest of all that a run's inputs are made from and were checked with; None if it cannot be told.

    Raises `OSError` for a source or a model that cannot be read.
    """
    if not spec.has.language_model or spec.data.has_images or not all(_is_fixed(part) for part in _code(spec)):
        return None
    paths = [path for source in spec.data.sources for path in _paths(source)]
    if not all(map(_has_digest, paths)) or sum(map(_bytes_of, paths)) > LARGEST_SOURCES:
        return None
    given = [*judge_models(spec).values(), *given_models(spec).values()]
    if isinstance(spec.model, GivenFolder) and not spec.virtual:
        given.append(spec.model)
    models = [Path(model.path).resolve() for model in given]  # a manifest has these paths
    return json_digest(
        {
            "spec": spec.model_dump(mode="json", exclude=set(UNREAD)),
            "algorithm": spec.algorithm.model_dump(mode="json", include={"critic", "distillation"}),
            "trainer": spec.trainer.model_dump(mode="json", include={"engine"}),
            "sources": [path_digest(path) for path in paths],
            "models": [[str(path), fingerprint(path)] for path in models],
            "code": code_revision(),
            "python": platform.python_version(),
            "packages": sorted(set(_packages())),
        }
    )


@dataclass(frozen=True, slots=True)
class KeptInputs:
    """The inputs that are kept in a folder, which several processes may use."""

    folder: Path

    def offer(self, spec: RunSpec, run_folder: Path) -> str | None:
        """Copies kept inputs into the folder of a run that has none.

        Returns the key under which inputs that are built are to be kept; None if they are there, or cannot be kept.
        """
        if (run_folder / INPUTS).exists():
            return None
        try:
            key = inputs_key(spec)
        except OSError as error:  # building says what is wrong
            log.warning("the inputs cannot be kept: %s", error)
            return None
        found = [] if key is None else sorted(self.folder.glob(f"{key}.*"))
        return None if any(_copied(each, run_folder) for each in found) else key

    def keep(self, spec: RunSpec, run_folder: Path, key: str) -> None:
        """Keeps a copy of inputs that were built, unless what they are made from has changed since `offer` returned the key."""
        source = run_folder / INPUTS
        temporary = None
        try:
            if not source.exists() or _bytes_of(source) > _largest(source) or inputs_key(spec) != key:
                return
            target = self.folder / f"{key}.{file_sha256(source / MANIFEST)}"
            if target.exists():
                return
            make_folder(self.folder)
            temporary = temporary_name(target)
            shutil.copytree(source, temporary)
            os.utime(temporary)
            _publish(temporary, target)
            self._delete_oldest()
        except (OSError, InfrastructureError) as error:
            log.warning("%s: the inputs are not kept: %s", self.folder, _reason(error))
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _delete_oldest(self) -> None:
        """Deletes what was used least recently and is too much, and what killed processes have left."""
        used = {path: path.stat().st_mtime for path in self.folder.iterdir()}
        total = 0
        for path in sorted(used, key=used.__getitem__, reverse=True):
            if path.name.startswith("."):
                abandoned = used[path] < time.time() - ABANDONED_SECONDS
            else:
                total += _bytes_of(path)
                abandoned = total > LARGEST_BYTES
            if abandoned:
                shutil.rmtree(path, ignore_errors=True)


def _largest(folder: Path) -> int:
    """Returns the most bytes that a run's inputs may have to be kept."""
    return min(LARGEST_BYTES, shutil.disk_usage(folder).free // FREE_SHARE)


def _reason(error: OSError | InfrastructureError) -> str:
    """Returns why something failed; of a folder's files, why the first did."""
    return str(error.args[0][0][2] if isinstance(error, shutil.Error) else error)


def _publish(temporary: Path, target: Path) -> None:
    """Gives a copy its name, unless another start has kept the same in the meantime."""
    try:
        temporary.rename(target)
    except OSError:
        if not target.exists():
            raise


def _copied(kept: Path, run_folder: Path) -> bool:
    """Copies kept inputs to where a run has them, durably; returns False, and deletes them, if they are damaged."""
    temporary = run_folder / f".{INPUTS}.kept"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(kept, temporary)
        if not _is_whole(temporary, kept.name.rpartition(".")[2]):
            log.warning("%s is damaged; the inputs are built", kept)
            shutil.rmtree(kept, ignore_errors=True)
            return False
        for below, _, names in os.walk(temporary):
            for name in names:
                sync_file(Path(below, name))
            sync_folder(Path(below))
        move_folder(temporary, run_folder / INPUTS)
    except (OSError, InfrastructureError) as error:
        log.warning("%s cannot be copied; the inputs are built: %s", kept, _reason(error))
        return False
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with suppress(OSError):  # another process may have deleted it
        os.utime(kept)
    return True


def _is_whole(folder: Path, manifest_sha256: str) -> bool:
    """Returns True if a folder has what its manifest names, and nothing else, and the manifest has a digest."""
    manifest = folder / MANIFEST
    if not manifest.is_file() or file_sha256(manifest) != manifest_sha256:
        return False
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    del files[MANIFEST]
    found = {name: file_sha256(path) for name, path in files.items()}
    return bool(found == json.loads(manifest.read_bytes())["files"])


def _bytes_of(path: Path) -> int:
    """Returns the size of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


def _paths(source: Source) -> list[Path]:
    """Returns the files and folders that a source is read from."""
    if isinstance(source, ReasoningGymSource | FunctionSource):
        return []
    held_out = getattr(source, "held_out_path", None)
    return [Path(source.path), *([] if held_out is None else [Path(held_out)])]


def _has_digest(path: Path) -> bool:
    """Returns True unless a path is a pattern, or a folder with links to other folders, which are read but not in its digest."""
    return path.exists() and not any(each.is_symlink() and each.is_dir() for each in path.rglob("*"))


def _code(spec: RunSpec) -> Iterator[FunctionPart | FunctionSource | ToolSpec]:
    """Yields the parts of a spec that name code which building calls."""
    yield from spec.rewards.functions
    yield from (source for source in spec.data.sources if isinstance(source, FunctionSource))
    if spec.rollout.tools is not None:
        yield from spec.rollout.tools.functions


def _is_fixed(part: FunctionPart | FunctionSource | ToolSpec) -> bool:
    """Returns True if the key stands for what a part's code does: a file whose digest the spec has, or YATT's own."""
    if isinstance(part, FunctionSource):  # it may read anything
        return False
    if part.file is not None:
        return part.sha256 is not None
    group = REWARDS if isinstance(part, FunctionPart) else TOOLS
    found = [point.value for point in entry_points(group=group, name=part.function or "")]
    return bool(found) and all(value.startswith("yatt_core.") for value in found)


def _packages() -> Iterator[str]:
    """Yields the names of the installed packages with their versions, as their folders say them."""
    for folder in sys.path:
        with suppress(OSError):
            yield from (path.name for path in Path(folder).iterdir() if path.suffix == ".dist-info")
