"""The durable tier of one run: finished folders of its run folder, each published as a whole or not at all.

Consumes folders that are sealed on the local disk: files that a `manifest.json` lists. Produces the same bytes as
objects `RUN/FOLDER/FILE` below the spec's address, with the manifest written last: a folder exists only once its
manifest does. Deletion starts with the manifest. Readers verify everything that is fetched from the store, as they
do with files on a disk.

    code/          files with reward functions: fetched like the inputs, published when they are copied
    inputs/        fetched if the run's folder lacks them, published after they are made
    checkpoints/   published before the receipt, fetched if a local copy is missing or damaged
    experience/    sealed shards, like checkpoints; chunks, prepared columns and telemetry stay on the local disk
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from yatt_core import durable
from yatt_core.errors import AwayError, ConfigurationError, DataError, InfrastructureError
from yatt_core.manifests import MANIFEST
from yatt_core.prompts.media import MEDIA
from yatt_core.spec import RunSpec
from yatt_core.storage.contents import entries_of, inode, is_intact, term_of
from yatt_core.storage.failures import store_name
from yatt_core.storage.fetching import fetching, partial_of
from yatt_core.storage.objects import ObjectStore

log = logging.getLogger(__name__)
OWNER = "owner.json"
Check = Callable[[Path], None]


class RunStore(Protocol):
    """What a run needs from its durable tier; folders are relative to the run folder."""

    def answers(self, dependency: str) -> bool | None:
        """Returns whether the store answers again; None if something else is away."""
        ...

    def claim(self, owner: str) -> None:
        """Ensures that the address belongs to this run.

        owner: an identity that no run of another ledger has.
        """
        ...

    def publish(self, folder: str) -> None:
        """Publishes a sealed local folder; returns when it is durable here, whichever process published it."""
        ...

    def fetch(self, folder: str, manifest_sha256: str | None = None, check: Check | None = None) -> bool:
        """Replaces the local folder with the published one; returns False if there is none with this manifest.

        check: examines the fetched folder before it is moved into place, and raises if it cannot be used.
        """
        ...

    def send(self, folder: str, files: Mapping[str, Path]) -> None:
        """Writes single files of a folder that is not published yet, or its manifest, which publishes it.

        files: local files by name within the folder.
        """
        ...

    def receive(self, folder: str, files: Mapping[str, Path]) -> None:
        """Reads single files of a folder; `files` as for `send`."""
        ...

    def pieces(self, folder: str, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Yields spans of a file of a folder, each as first byte and the byte after the last, in order.

        A span is shorter if the file ends earlier, and empty if there is no such file.
        """
        ...

    def write(self, folder: str, name: str, data: bytes) -> None:
        """Writes a small file of a folder."""
        ...

    def create(self, folder: str, name: str, data: bytes) -> bytes:
        """Writes a small file of a folder unless there is one of the name; returns what is there then."""
        ...

    def read(self, folder: str, name: str) -> bytes | None:
        """Returns a small file of a folder; None if there is none."""
        ...

    def verify(self, folder: str, manifest_sha256: str) -> None:
        """Compares a published folder with its manifest, and the manifest with the ledger's sha256.

        Raises `DataError` naming the object.
        """
        ...

    def folders(self, below: str, depth: int = 1) -> dict[str, bool]:
        """Returns the folders `depth` levels below a folder, each with whether it is published."""
        ...

    def remove(self, folder: str) -> None:
        """Deletes a folder; readers never see half of it."""
        ...

    def remove_all(self, owner: str) -> None:
        """Deletes everything of this run, if the address belongs to it; may be repeated after a failure.

        owner: the identity with which the run claimed the address.
        """
        ...

    def sweep(self, below: str, keep: Collection[str], term: int, in_flight: bool = False) -> list[str]:
        """Deletes the folders below a folder, partial ones included, except those to be kept; returns the deleted ones.

        term: the term of the sweeping driver, which leaves folders of later terms alone.
        in_flight: a folder is being published, so partial ones are kept.
        """
        ...


class NoStore:
    """The durable tier of a run that has only its folder."""

    def answers(self, dependency: str) -> bool | None:
        """Returns None: it is never away."""
        return None

    def claim(self, owner: str) -> None:
        """Does nothing."""

    def publish(self, folder: str) -> None:
        """Does nothing: the local folder is already durable."""

    def fetch(self, folder: str, manifest_sha256: str | None = None, check: Check | None = None) -> bool:
        """Returns False: there is nothing to fetch."""
        return False

    def send(self, folder: str, files: Mapping[str, Path]) -> None:
        """Does nothing."""

    def receive(self, folder: str, files: Mapping[str, Path]) -> None:
        """Does nothing."""

    def pieces(self, folder: str, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Yields empty spans."""
        return iter([b""] * len(spans))

    def write(self, folder: str, name: str, data: bytes) -> None:
        """Does nothing."""

    def create(self, folder: str, name: str, data: bytes) -> bytes:
        """Returns the data."""
        return data

    def read(self, folder: str, name: str) -> bytes | None:
        """Returns None."""
        return None

    def verify(self, folder: str, manifest_sha256: str) -> None:
        """Does nothing: there is no second copy."""

    def folders(self, below: str, depth: int = 1) -> dict[str, bool]:
        """Returns no folders."""
        return {}

    def remove(self, folder: str) -> None:
        """Does nothing."""

    def remove_all(self, owner: str) -> None:
        """Does nothing."""

    def sweep(self, below: str, keep: Collection[str], term: int, in_flight: bool = False) -> list[str]:
        """Deletes nothing."""
        return []


class ObjectRunStore:
    """A run's part of an object store.

    run_folder: has the name of the run.
    """

    def __init__(self, objects: ObjectStore, run_folder: Path) -> None:
        self._objects = objects
        self._run_folder = run_folder

    def answers(self, dependency: str) -> bool | None:
        """Returns whether the store answers a small request; None if something else is away."""
        if dependency != store_name(self._objects.url):
            return None
        try:
            self._objects.read(self._name(OWNER))
        except AwayError:
            return False
        return True

    def claim(self, owner: str) -> None:
        """Records the owner if there is none yet. Raises `ConfigurationError` if the address belongs to another run."""
        name = self._name(OWNER)
        wanted = self._claim_of(owner)
        found = self._objects.read(name)
        if found is None:
            self._objects.create(name, wanted)
            found = self._objects.read(name)
        if found != wanted:
            raise ConfigurationError(
                f"storage.url {self._objects.url}: it already holds a run {self._run_folder.name} of another ledger; choose "
                "another prefix for this home"
            )

    def publish(self, folder: str) -> None:
        """Uploads the files, then the manifest; files of an interrupted attempt are overwritten with the same bytes.

        Raises `DataError` if the local folder is not sealed.
        """
        files, manifest = self._sealed(folder)
        there = self._objects.sizes(self._name(folder) + "/")
        marker = self._name(folder, MANIFEST)
        sizes = {name: path.stat().st_size for name, path in files.items()}
        if marker in there:
            if sizes.items() <= there.items() and self._objects.read(marker) == manifest:
                return
            self._objects.delete(
                [marker]
            )  # it describes other contents, so the folder is unpublished until the new ones are complete
        self._objects.delete([name for name in there if name not in files and name != marker])
        self._objects.upload(files)
        self._objects.write(marker, manifest)

    def fetch(self, folder: str, manifest_sha256: str | None = None, check: Check | None = None) -> bool:
        """Downloads to a temporary folder, syncs it, removes any local folder of the final name, and renames it.

        Local files that match the manifest are kept instead of being downloaded.

        Concurrent fetches of the same folder wait for the first and keep its result.
        """
        manifest = self._objects.read(self._name(folder, MANIFEST))
        if manifest is None:
            return False
        if manifest_sha256 is not None and hashlib.sha256(manifest).hexdigest() != manifest_sha256:
            log.error("%s on the object store does not have the manifest that the ledger names", folder)
            return False
        target = self._run_folder / folder
        before = inode(target)
        durable.make_folder(target.parent)
        with fetching(self._run_folder):
            if inode(target) in (None, before):
                self._replace(folder, target, entries_of(manifest, folder), check)
        return True

    def _replace(self, folder: str, target: Path, entries: Mapping[str, Any], check: Check | None) -> None:
        """Assembles a folder from the local files that match the manifest's entries, and downloads the others."""
        partial = partial_of(target)
        prefix = self._name(folder) + "/"
        found = [name.removeprefix(prefix) for name in self._objects.sizes(prefix)]
        # Objects that a manifest with sizes does not list are of attempts that came to nothing.
        partial_list = any(not isinstance(entry, dict) for entry in entries.values())
        names = [name for name in found if partial_list or name in entries or name == MANIFEST]
        if outside := [name for name in found if ".." in PurePosixPath(name).parts or name.startswith("/")]:
            raise DataError(f"{self._objects.url}/{prefix}{outside[0]}: the object's name points outside its folder")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with durable.refusals(f"{target}: cannot be fetched"):
                for parent in {(partial / name).parent for name in names}:
                    parent.mkdir(parents=True, exist_ok=True)
                kept = [name for name in names if is_intact(target / name, entries.get(name))]
                for name in kept:
                    os.link(target / name, partial / name)
                self._objects.download({prefix + name: partial / name for name in names if name not in kept})
                for path in sorted(partial.rglob("*"), reverse=True):
                    durable.sync_folder(path) if path.is_dir() else durable.sync_file(path)
                durable.sync_folder(partial)
            if check is not None:
                check(partial)
            if target.exists():
                durable.remove_folder(target)
            durable.move_folder(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        log.info("%s was fetched from the object store", folder)

    def send(self, folder: str, files: Mapping[str, Path]) -> None:
        """Uploads the files."""
        self._objects.upload({self._name(folder, name): path for name, path in files.items()})

    def receive(self, folder: str, files: Mapping[str, Path]) -> None:
        """Downloads the files, whose local folders must exist."""
        if files:
            self._objects.download({self._name(folder, name): path for name, path in files.items()})

    def pieces(self, folder: str, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Requests several spans at once."""
        return self._objects.pieces(self._name(folder, name), spans)

    def write(self, folder: str, name: str, data: bytes) -> None:
        """Writes an object."""
        self._objects.write(self._name(folder, name), data)

    def create(self, folder: str, name: str, data: bytes) -> bytes:
        """Creates an object. A store without conditional writes replaces the one that is there."""
        self._objects.create(self._name(folder, name), data)
        return self._objects.read(self._name(folder, name)) or b""

    def read(self, folder: str, name: str) -> bytes | None:
        """Reads an object."""
        return self._objects.read(self._name(folder, name))

    def verify(self, folder: str, manifest_sha256: str) -> None:
        """Reads every object piece by piece, after comparing the manifest with the ledger's sha256."""
        marker = self._name(folder, MANIFEST)
        data = self._objects.read(marker)
        if data is None or hashlib.sha256(data).hexdigest() != manifest_sha256:
            found = "does not exist" if data is None else "is not the one that the ledger names"
            raise DataError(f"{self._objects.url}/{marker}: {found}")
        sizes = self._objects.sizes(self._name(folder) + "/")
        for name, expected in sorted(entries_of(data, marker).items()):
            key = self._name(folder, name)
            found_entry = self._objects.entry(key, sizes.get(key, 0))
            sha256 = expected if isinstance(expected, str) else expected["sha256"]
            if found_entry.sha256 != sha256:
                raise DataError(
                    f"{self._objects.url}/{key}: sha256 is {found_entry.sha256}, its manifest says {sha256}"
                )

    def folders(self, below: str, depth: int = 1) -> dict[str, bool]:
        """Returns the folders, derived only from the objects' names."""
        found: dict[str, bool] = {}
        start = len(PurePosixPath(below).parts)
        for name in self._objects.sizes(self._name(below) + "/"):
            parts = PurePosixPath(name).parts[1:]
            if len(parts) > start + depth:
                folder = str(PurePosixPath(*parts[: start + depth]))
                found[folder] = found.get(folder, False) or parts[start + depth :] == (MANIFEST,)
        return found

    def remove(self, folder: str) -> None:
        """Deletes the manifest first. Objects that the store does not delete now are removed by the next sweep."""
        marker = self._name(folder, MANIFEST)
        try:
            self._objects.delete([marker])
            self._objects.delete([name for name in self._objects.sizes(self._name(folder) + "/") if name != marker])
        except InfrastructureError as error:
            log.warning("%s stays on the object store until the next sweep: %s", folder, error)

    def remove_all(self, owner: str) -> None:
        """Deletes the claim last, so that a repetition still knows that the objects are this run's."""
        claim = self._name(OWNER)
        below = self._name() + "/"
        if self._objects.read(claim) != self._claim_of(owner):
            return
        self._objects.abort_uploads(below)
        if others := [name for name in self._objects.sizes(below) if name != claim]:
            self._objects.delete(others)
        self._objects.delete([claim])

    def sweep(self, below: str, keep: Collection[str], term: int, in_flight: bool = False) -> list[str]:
        """Deletes as `RunStore.sweep` describes; unless something is in flight, also aborts open multipart uploads."""
        removed = []
        try:
            for folder, whole in self.folders(below).items():
                if folder in keep or term_of(folder) > term or (in_flight and not whole):
                    continue
                self.remove(folder)
                removed.append(folder)
            if not in_flight:
                self._objects.abort_uploads(self._name(below) + "/")
        except InfrastructureError as error:
            log.warning("unneeded folders below %s stay on the object store until the next sweep: %s", below, error)
        return removed

    def _sealed(self, folder: str) -> tuple[dict[str, Path], bytes]:
        """Returns the files of a sealed local folder, by object name, and its manifest.

        Raises `DataError` if the folder is not sealed.
        """
        local = self._run_folder / folder
        try:
            manifest = (local / MANIFEST).read_bytes()
        except OSError as error:
            raise DataError(f"{local / MANIFEST}: cannot be read: {error.strerror}") from error
        named = list(entries_of(manifest, str(local / MANIFEST)))
        # Images of the inputs, which the manifest covers as a whole.
        named += [path.relative_to(local).as_posix() for path in (local / MEDIA).rglob("*") if path.is_file()]
        files = {self._name(folder, name): local / name for name in named}
        if missing := [str(path) for path in files.values() if not path.is_file()]:
            raise DataError(f"{missing[0]}: is missing, but its manifest lists it")
        return files, manifest

    def _claim_of(self, owner: str) -> bytes:
        return json.dumps({"run": self._run_folder.name, "owner": owner}, sort_keys=True).encode()

    def _name(self, *parts: str) -> str:
        return str(PurePosixPath(self._run_folder.name, *parts))


def open_store(spec: RunSpec, run_folder: Path) -> RunStore:
    """Returns the durable tier that the spec names; it connects on first use."""
    return store_at(spec.storage.url, run_folder)


def store_at(url: str | None, run_folder: Path) -> RunStore:
    """Returns the durable tier at an address; it connects on first use.

    url: None if the run has only its folder.
    """
    return NoStore() if url is None else ObjectRunStore(ObjectStore(url), run_folder)
