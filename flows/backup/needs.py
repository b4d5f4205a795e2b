"""Which files of a home the rows of a cut need: to resume its runs, and to audit them.

Consumes an open cut, later the home. A folder that is sealed by a manifest is needed as a whole, and its files have known
digests:

    code/SHA256          the run's copies of files with code, for each revision of its spec
    inputs/              once the run has begun
    checkpoints/         those that are kept
    experience/          every shard, unless the audit chain says that its files were deleted
    prepared.tNNNN/      if it is there, with its images: it can be computed again

Of the others, those that are there are copied: `spec.yaml`, `placement/`, a pipeline's folder, and the home's settings. Left
out are logs, telemetry, exports, reports, event files of trackers, services, and secrets: keys and passwords are no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from db.portable.cut import Cut, NamedFolder
from flows.billing.price_file import NAME as PRICES
from flows.files.retention import PRUNED_EVENT
from flows.queueing.pools_file import NAME as POOLS
from flows.run.home import Home
from yatt_core.errors import DataError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import iteration_folder
from yatt_core.manifests import MANIFEST, entry_of_bytes
from yatt_core.named_code import CODE
from yatt_core.prompts.media import MEDIA, media_path, stored_addresses
from yatt_core.storage.contents import entries_of
from yatt_core.workloads.images import IMAGES

SETTINGS = (PRICES, POOLS)
PLACEMENT = "placement"
SPEC = "spec.yaml"


@dataclass(frozen=True, slots=True)
class SealedFolder:
    """A folder with a manifest.

    folder: relative to the run's folder.
    manifest_sha256: None if no row has it.
    spare: whether a backup is complete without it.
    """

    run: str
    folder: str
    manifest_sha256: str | None
    spare: bool = False

    @property
    def name(self) -> str:
        """Its path below the home."""
        return f"{self.run}/{self.folder}"


@dataclass(frozen=True, slots=True)
class BackupNeeds:
    """What the rows of a cut need.

    stores: the runs that have an object store.
    """

    runs: tuple[str, ...]
    pipelines: tuple[str, ...]
    sealed: tuple[SealedFolder, ...]
    stores: frozenset[str]


def needs_of(cut: Cut) -> BackupNeeds:
    """Returns what the rows of a cut need."""
    specs = cut.specs()
    newest = dict(specs)
    sealed = dict.fromkeys((*_code(specs), *_inputs(cut), *_checkpoints(cut), *_experience(cut)))
    stores = frozenset(run for run, spec in newest.items() if (spec.get("storage") or {}).get("url"))
    return BackupNeeds(tuple(cut.runs()), tuple(cut.pipelines()), tuple(sealed), stores)


def _code(specs: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[SealedFolder]:
    for run, spec in specs:
        for part in _naming_code(spec):
            if part.get("file") and part.get("sha256"):
                yield SealedFolder(run, f"{CODE}/{part['sha256']}", None)


def _naming_code(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the parts of a spec that may name a file with code; specs of older versions lack some."""
    yield spec.get("workload") or {}
    yield from (spec.get("rewards") or {}).get("parts") or ()
    algorithm = spec.get("algorithm") or {}
    tools = (spec.get("rollout") or {}).get("tools") or {}
    yield from filter(None, (algorithm.get("loss"), algorithm.get("advantage")))
    yield from (spec.get("data") or {}).get("sources") or ()
    yield from tools.get("functions") or ()
    yield from spec.get("callbacks") or ()


def _inputs(cut: Cut) -> Iterator[SealedFolder]:
    for run, body in cut.choices(INPUTS):
        yield SealedFolder(run, INPUTS, body["manifest_sha256"])


def _checkpoints(cut: Cut) -> Iterator[SealedFolder]:
    for row in cut.checkpoints():
        yield SealedFolder(row.run, row.folder, row.manifest_sha256)


def _experience(cut: Cut) -> Iterator[SealedFolder]:
    pruned: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for run, body in cut.events(PRUNED_EVENT):
        pruned.setdefault((run, body["branch"]), []).append((body["first"], body["last"]))

    def there(row: NamedFolder) -> bool:
        return not any(first <= row.iteration <= last for first, last in pruned.get((row.run, row.branch), ()))

    shards = [row for row in cut.shards() if there(row)]
    for row in shards:
        yield SealedFolder(row.run, row.folder, row.manifest_sha256)
    replayed = {(row.run, str(iteration_folder(row.branch, row.iteration))) for row in shards}
    of_shards = {row.run for row in cut.shards()}
    for run, receipt in cut.receipts("prepare"):
        # A workload of one's own has no shards: what it learnt from is in its prepared columns alone.
        if run not in of_shards or (run, str(PurePosixPath(receipt["folder"]).parent)) in replayed:
            yield SealedFolder(run, receipt["folder"], None, spare=True)
            if images := receipt.get("images"):
                yield SealedFolder(run, f"{receipt['folder']}/{IMAGES}", images, spare=True)


def sealed_files(home: Home, sealed: SealedFolder) -> dict[str, str]:
    """Returns the files of a sealed folder by name within it, each with the sha256 that it must have.

    Raises `DataError` if the manifest is missing, or not the one that the rows name.
    """
    folder = home.run_folder(sealed.run) / sealed.folder
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    found = entry_of_bytes(text).sha256
    if sealed.manifest_sha256 not in (None, found):
        raise DataError(f"{path}: sha256 is {found}, the ledger says {sealed.manifest_sha256}")
    listed = entries_of(text, str(path))
    files = {name: entry if isinstance(entry, str) else str(entry["sha256"]) for name, entry in listed.items()}
    media = {str(media_path(folder, each).relative_to(folder)): each for each in _media(folder)}
    return {MANIFEST: found, **files, **media}


def _media(folder: Path) -> Iterator[str]:
    if folder.name == INPUTS and (folder / MEDIA).is_dir():
        yield from stored_addresses(folder)


def other_files(home: Home, needs: BackupNeeds, settings: Sequence[str]) -> Iterator[str]:
    """Yields the files that are copied if they are there, as paths relative to the home.

    settings: names of files in the home folder.
    """
    for name in (*SETTINGS, *settings):
        if (home.folder / name).is_file():
            yield name
    folders = [home.run_folder(run) / PLACEMENT for run in needs.runs]
    folders += [home.pipelines / pipeline for pipeline in needs.pipelines]
    specs = [home.run_folder(run) / SPEC for run in needs.runs]
    for path in (*specs, *(path for folder in folders for path in sorted(folder.rglob("*")))):
        relative = path.relative_to(home.folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix()
