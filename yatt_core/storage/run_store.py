"""The durable tier of one run: finished folders of its run folder, each published whole or not at all.

Consumes folders that are sealed on the local disk: files that a `manifest.json` names. Produces the same bytes as objects
`RUN/FOLDER/FILE` below the spec's address, the manifest's last: a folder is there only when its manifest is. Deleting begins with
the manifest. Whatever is fetched from there is checked by its readers, like all that lies on a disk.

    inputs/        fetched where the run's folder lacks them, published behind it
    checkpoints/     published before the receipt, fetched where a local copy is missing or damaged
    experience/    the same for every sealed shard; chunks, prepared columns and telemetry are the local disk's alone
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from yatt_core import durable
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.manifests import MANIFEST
from yatt_core.prompts.media import MEDIA
from yatt_core.spec import RunSpec
from yatt_core.storage.fetching import fetching, partial_of
from yatt_core.storage.objects import ObjectStore

log = logging.getLogger(__name__)
OWNER = "owner.json"
_TERM = re.compile(r"\.t(\d+)(\.\d+)?$")


class RunStore(Protocol):
    """What a run asks of its durable tier; folders are relative to the run folder."""

    def claim(self, owner: str) -> None:
        """Makes sure that the address is this run's. owner: an identity that no run of another ledger has."""
        ...

    def publish(self, folder: str) -> None:
        """Returns once a sealed local folder is durable here, whoever published it."""
        ...

    def fetch(self, folder: str, manifest_sha256: str | None = None) -> bool:
        """Puts a published folder in place of the local one; False where there is none, or not one of this manifest."""
        ...

    def verify(self, folder: str, manifest_sha256: str) -> None:
        """Compares a published folder with its manifest, and that with the ledger's. Raises `DataError` naming the object."""
        ...

    def folders(self, below: str, depth: int = 1) -> dict[str, bool]:
        """Folders so many levels below one, and whether each is published."""
        ...

    def remove(self, folder: str) -> None:
        """Deletes a folder; no half of it is ever seen."""
        ...

    def sweep(self, below: str, keep: Collection[str], term: int, in_flight: bool = False) -> list[str]:
        """Deletes the folders below one that are not to be kept, half ones too; returns them.

        term: of the driver that sweeps, which leaves alone what a later one made. in_flight: somebody is publishing, so
        that half ones stay.
        """
        ...


class NoStore:
    """For a run whose folder is all there is."""

    def claim(self, owner: str) -> None:
        """Nothing to claim."""

    def publish(self, folder: str) -> None:
        """The local folder is durable already."""

    def fetch(self, folder: str, manifest_sha256: str | None = None) -> bool:
        """There is nothing to fetch."""
        return False

    def verify(self, folder: str, manifest_sha256: str) -> None:
        """There is no second copy."""

    def folders(self, below: str, depth: int = 1) -> dict[str, bool]:
        """None."""
        return {}

    def remove(self, folder: str) -> None:
        """Nothing to delete."""

    def sweep(self, below: str, keep: Collection[str], term: int, in_flight: bool = False) -> list[str]:
        """Nothing to delete."""
        return []


class ObjectRunStore:
    """A run's part of an object store. run_folder: named like the run."""

    def __init__(self, objects: ObjectStore, run_folder: Path) -> None:
        self._objects, self._run_folder = objects, run_folder

    def claim(self, owner: str) -> None:
        """Writes whose it is, where nobody has. Raises `ConfigurationError` where it is another run's."""
        name = self._name(OWNER)
        wanted = json.dumps({"run": self._run_folder.name, "owner": owner}, sort_keys=True).encode()
        found = self._objects.read(name)
        if found is None:
            self._objects.create(name, wanted)
            found = self._objects.read(name)
        if found != wanted:
            raise ConfigurationError(
                f"storage.url {self._objects.url}: below it lies a run {self._run_folder.name} of another ledger; choose "
                "another prefix for this home"
            )

    def publish(self, folder: str) -> None:
        """Sends the files, then the manifest. What a cut-off attempt left is overwritten with the same bytes.

        Raises `DataError` for a local folder that is not sealed.
        """
        files, manifest = self._sealed(folder)
        there = self._objects.sizes(self._name(folder) + "/")
        marker = self._name(folder, MANIFEST)
        sizes = {name: path.stat().st_size for name, path in files.items()}
        if marker in there:
            if sizes.items() <= there.items() and self._objects.read(marker) == manifest:
                return
            self._objects.delete([marker])  # of other contents: nothing is published until these are
        self._objects.delete([name for name in there if name not in files and name != marker])
        self._objects.upload(files)
        self._objects.write(marker, manifest)

    def fetch(self, folder: str, manifest_sha256: str | None = None) -> bool:
        """Downloads beside the place, syncs, and renames; a local folder of that name goes first.

        Whoever fetches the same at the same time waits for the first, and leaves what that one has put in place.
        """
        manifest = self._objects.read(self._name(folder, MANIFEST))
        if manifest is None:
            return False
        if manifest_sha256 is not None and hashlib.sha256(manifest).hexdigest() != manifest_sha256:
            log.error("%s on the object store is not the one that the ledger names", folder)
            return False
        target = self._run_folder / folder
        before = _inode(target)
        durable.make_folder(target.parent)
        with fetching(self._run_folder):
            if _inode(target) in (None, before):
                self._replace(folder, target)
        return True

    def _replace(self, folder: str, target: Path) -> None:
        partial, prefix = partial_of(target), self._name(folder) + "/"
        names = [name.removeprefix(prefix) for name in self._objects.sizes(prefix)]
        if outside := [name for name in names if ".." in PurePosixPath(name).parts or name.startswith("/")]:
            raise DataError(f"{self._objects.url}/{prefix}{outside[0]}: the object's name leads out of its folder")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with durable.refusals(f"{target}: cannot be fetched"):
                for parent in {(partial / name).parent for name in names}:
                    parent.mkdir(parents=True, exist_ok=True)
                self._objects.download({prefix + name: partial / name for name in names})
                for path in sorted(partial.rglob("*"), reverse=True):
                    durable.sync_folder(path) if path.is_dir() else durable.sync_file(path)
                durable.sync_folder(partial)
            if target.exists():
                durable.remove_folder(target)
            durable.move_folder(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        log.info("%s was fetched from the object store", folder)

    def verify(self, folder: str, manifest_sha256: str) -> None:
        """Reads every object piece by piece; the manifest is compared with the ledger's sha256 first."""
        marker = self._name(folder, MANIFEST)
        data = self._objects.read(marker)
        if data is None or hashlib.sha256(data).hexdigest() != manifest_sha256:
            found = "is not there" if data is None else "is not the one that the ledger names"
            raise DataError(f"{self._objects.url}/{marker}: {found}")
        sizes = self._objects.sizes(self._name(folder) + "/")
        for name, expected in sorted(_entries(data, marker).items()):
            key = self._name(folder, name)
            found_entry = self._objects.entry(key, sizes.get(key, 0))
            sha256 = expected if isinstance(expected, str) else expected["sha256"]
            if found_entry.sha256 != sha256:
                raise DataError(
                    f"{self._objects.url}/{key}: sha256 is {found_entry.sha256}, its manifest says {sha256}"
                )

    def folders(self, below: str, depth: int = 1) -> dict[str, bool]:
        """From the names of the objects alone."""
        found: dict[str, bool] = {}
        start = len(PurePosixPath(below).parts)
        for name in self._objects.sizes(self._name(below) + "/"):
            parts = PurePosixPath(name).parts[1:]
            if len(parts) > start + depth:
                folder = str(PurePosixPath(*parts[: start + depth]))
                found[folder] = found.get(folder, False) or parts[start + depth :] == (MANIFEST,)
        return found

    def remove(self, folder: str) -> None:
        """Its manifest first. What the store does not delete now is nobody's, and goes with the next sweep."""
        marker = self._name(folder, MANIFEST)
        try:
            self._objects.delete([marker])
            self._objects.delete([name for name in self._objects.sizes(self._name(folder) + "/") if name != marker])
        except InfrastructureError as error:
            log.warning("%s stays on the object store until the next sweep: %s", folder, error)

    def sweep(self, below: str, keep: Collection[str], term: int, in_flight: bool = False) -> list[str]:
        """Also ends uploads in parts that were cut off, unless something is in flight."""
        removed = []
        try:
            for folder, whole in self.folders(below).items():
                if folder in keep or _term_of(folder) > term or (in_flight and not whole):
                    continue
                self.remove(folder)
                removed.append(folder)
            if not in_flight:
                self._objects.abort_uploads(self._name(below) + "/")
        except InfrastructureError as error:
            log.warning("what nobody needs below %s stays on the object store until the next sweep: %s", below, error)
        return removed

    def _sealed(self, folder: str) -> tuple[dict[str, Path], bytes]:
        """Files of a sealed local folder, by the names of their objects, and its manifest."""
        local = self._run_folder / folder
        try:
            manifest = (local / MANIFEST).read_bytes()
        except OSError as error:
            raise DataError(f"{local / MANIFEST}: cannot be read: {error.strerror}") from error
        named = list(_entries(manifest, str(local / MANIFEST)))
        # Images of the inputs, which the manifest vouches for together.
        named += [path.relative_to(local).as_posix() for path in (local / MEDIA).rglob("*") if path.is_file()]
        files = {self._name(folder, name): local / name for name in named}
        if missing := [str(path) for path in files.values() if not path.is_file()]:
            raise DataError(f"{missing[0]}: is missing, its manifest names it")
        return files, manifest

    def _name(self, *parts: str) -> str:
        return str(PurePosixPath(self._run_folder.name, *parts))


def open_store(spec: RunSpec, run_folder: Path) -> RunStore:
    """The durable tier that the spec names; connects when it is first used."""
    if spec.storage.url is None:
        return NoStore()
    return ObjectRunStore(ObjectStore(spec.storage.url), run_folder)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _entries(manifest: bytes, place: str) -> dict[str, Any]:
    """Files by name as a manifest has them: an entry with size and sha256, of inputs the sha256 alone. Raises `DataError`."""
    try:
        return dict(json.loads(manifest)["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place}: is no manifest: {error!r}") from error


def _term_of(folder: str) -> int:
    """The term in a folder's name; 0 for a name without."""
    match = _TERM.search(folder)
    return int(match[1]) if match else 0
