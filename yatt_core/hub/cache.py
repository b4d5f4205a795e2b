"""The files of the Hub that a home has: one folder for each commit and choice of files, complete or not there at all.

Consumes a repository at a commit and the files that are wanted. Produces a folder whose contents were compared with the
digests of the repository, and its manifest. A fetch that was killed goes on with the files that it had completed. Processes
that want the same folder wait for the one that fetches it, so that a machine fetches it once.

Layout: `HOME/hub/KINDs/ORGANISATION--NAME/COMMIT[-CHOICE]/` with `manifest.json` and the folder `files`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from yatt_core import durable
from yatt_core.datasets.hub_folders import HUB_FILES
from yatt_core.digests import READ_BYTES
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, StorageFullError
from yatt_core.file_lock import file_lock
from yatt_core.hub.client import HubClient
from yatt_core.hub.files import HubFile, is_weights
from yatt_core.manifests import FileEntry, load_manifest, publish_manifest, require_size, verify_files

HUB = "hub"
FILES = "files"
SKETCH = ".sketch"
"""End of the name of a folder whose tensors are left out."""
SPARE_BYTES = 64 << 20
"""Space that is left free beside what is fetched."""
LOOK_SECONDS = 0.5
"""Time between two looks at how far a fetch has come."""
READ_ONLY = 0o444
LENGTH_BYTES = 8
"""Bytes before the header of a file of tensors, which say how long it is."""
BLOCK_BYTES = 512
"""Unit in which the system counts the space of a file."""
_INCOMING = "incoming"
_REFERENCES = "references.json"


@dataclass(frozen=True, slots=True)
class RepositoryFiles:
    """Files of a repository at a commit.

    fields: of the manifest.
    """

    commit: str
    files: Sequence[HubFile]
    fields: Mapping[str, object]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete folder.

    manifest: SHA-256 of its manifest.
    """

    folder: Path
    manifest: str


Tell = Callable[[str, int, int], None]
"""Is told what is fetched, and how many of how many bytes are there."""


def silent(what: str, done: int, of: int) -> None:
    """Tells nobody."""


def repository_folder(home: Path, kind: str, repo: str) -> Path:
    """Returns the folder of a repository in a home."""
    return home / HUB / f"{kind}s" / repo.replace("/", "--")


def complete(place: Path, contents: bool = False) -> Fetched | None:
    """Returns the folder at a place if it is complete, with files of the sizes that its manifest says; None if there is none.

    contents: whether the contents of all files are compared with their digests, too.

    Raises `ConfigurationError` for a folder that was changed.
    """
    if not place.exists():
        return None
    try:
        manifest = load_manifest(place, HUB_FILES)
        for name, entry in manifest.files.items():
            require_size(place / FILES / name, entry)
        if contents:
            verify_files(place / FILES, manifest.files)
    except DataError as error:
        raise ConfigurationError(f"{error}; delete {place}, and the files are fetched again") from None
    return Fetched(place / FILES, manifest.sha256)


def fetch(
    client: HubClient, wanted: RepositoryFiles, place: Path, tell: Tell = silent, sketch: bool = False
) -> Fetched:
    """Fetches files into a folder that appears when all are there; returns it at once if it is complete.

    sketch: leave out the tensors: the files that have them get their names, types and shapes, and no contents on the disk.

    Raises `ConfigurationError` and `InfrastructureError` as the client does, `StorageFullError` before anything is fetched,
    and `DataError` for a file that is not what the repository's list says.
    """
    durable.make_folder(place.parent)
    with file_lock(place.parent / f".{place.name}.lock", wait=True):
        if (found := complete(place)) is not None:
            return found
        partial = place.parent / f".{place.name}.partial"
        incoming = partial / _INCOMING
        durable.make_folder(partial / FILES)
        shutil.rmtree(incoming, ignore_errors=True)  # of a process that was killed: the client never uses it again
        lacking = [file for file in wanted.files if not _has(partial / FILES / file.path, file)]
        drawn = {file.path for file in lacking if sketch and is_weights(file)}
        _check_space(client, partial, sum(file.size for file in lacking if file.path not in drawn))
        shown = sum(file.size for file in wanted.files if file.path not in drawn)
        with _telling(partial, client.repo, shown, tell):
            for file in lacking:
                if file.path in drawn:
                    _draw(client, wanted.commit, file, partial / FILES / file.path)
                else:
                    _receive(
                        client=client,
                        commit=wanted.commit,
                        file=file,
                        incoming=incoming,
                        target=partial / FILES / file.path,
                    )
        shutil.rmtree(incoming, ignore_errors=True)
        entries = {file.path: _entry(partial / FILES / file.path, file) for file in wanted.files}
        sha256 = publish_manifest(partial, HUB_FILES, wanted.fields, entries)
        durable.move_folder(partial, place)
    return Fetched(place / FILES, sha256)


def record_reference(folder: Path, revision: str, commit: str) -> None:
    """Records the commit that a revision had when it was last asked for, for use without a network."""
    durable.make_folder(folder)
    with file_lock(folder / ".references.lock", wait=True):
        known = references(folder)
        if known.get(revision) != commit:
            durable.write_json(folder / _REFERENCES, {**known, revision: commit})


def references(folder: Path) -> dict[str, str]:
    """Returns the commits of the revisions that this home has asked for."""
    try:
        known = json.loads((folder / _REFERENCES).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"{folder / _REFERENCES}: cannot be read: {error}; delete it") from None
    return dict(known)


def _receive(client: HubClient, commit: str, file: HubFile, incoming: Path, target: Path) -> None:
    """Fetches a file and puts it into its place once its contents are those of the repository."""
    durable.make_folder(incoming)
    durable.make_folder(target.parent)
    if _linked(incoming.parent.parent, file, target):
        return
    path = receive(client, commit, file, incoming)
    path.chmod(READ_ONLY)
    durable.sync_file(path)
    with durable.refusals(f"{target}: cannot be written"):
        path.replace(target)
    durable.sync_folder(target.parent)


def receive(client: HubClient, commit: str, file: HubFile, folder: Path) -> Path:
    """Fetches a file into a folder and returns its path. Raises `DataError` if it is not what the repository's list says."""
    path = client.fetch(commit, file.path, folder)
    if (found := digest_of(path, file)) != (file.size, file.digest):
        size = path.stat().st_size
        path.unlink()
        raise DataError(
            f"{client.place}: {file.path} is not what its list of files says: {size:,} bytes with {found[1]} in place of "
            f"{file.size:,} with {file.digest}; try again, or another mirror"
        )
    return path


def _linked(repository: Path, file: HubFile, target: Path) -> bool:
    """Gives a file that another folder of the repository has a second name; returns False if none has it."""
    for other in repository.glob(f"[!.]*/{FILES}"):
        source = other / file.path
        if other.parent.suffix != SKETCH or not is_weights(file):
            with suppress(OSError):  # it is fetched, as if it were not there
                if _has(source, file):
                    os.link(source, target)
                    durable.sync_folder(target.parent)
                    return True
    return False


def _draw(client: HubClient, commit: str, file: HubFile, target: Path) -> None:
    """Writes a file of tensors with its true header and size, and holes in place of the tensors."""
    header = client.header(commit, file.path)
    header = header.ljust(file.size - LENGTH_BYTES - _tensor_bytes(header))  # with blanks, as libraries do
    begin = struct.pack("<Q", len(header)) + header
    with durable.refusals(f"{target}: cannot be written"), target.open("wb") as stream:
        stream.write(begin)
        stream.truncate(file.size)


def _tensor_bytes(header: bytes) -> int:
    tensors = (each for key, each in json.loads(header).items() if key != "__metadata__")
    return max((each["data_offsets"][1] for each in tensors), default=0)


def digest_of(path: Path, file: HubFile) -> tuple[int, str]:
    """Returns the size of a file and its digest, of the kind that the repository's list has."""
    size = path.stat().st_size
    kind = file.digest.partition(":")[0]
    # Git names a blob by the SHA-1 of its header and contents; nothing but the repository's own list is compared with it.
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False) if kind == "git" else hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return size, f"{kind}:{digest.hexdigest()}"


def _has(path: Path, file: HubFile) -> bool:
    """Returns True if a fetch that was killed has completed a file."""
    return path.is_file() and path.stat().st_size == file.size and digest_of(path, file) == (file.size, file.digest)


def _entry(path: Path, file: HubFile) -> FileEntry:
    kind, _, value = file.digest.partition(":")
    if kind != "sha256":
        value = hashlib.sha256(path.read_bytes()).hexdigest()
    return FileEntry(path.stat().st_size, value)


def _check_space(client: HubClient, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise StorageFullError(
            f"{folder}: not enough disk space for {client.place}: {needed / 1e9:,.2f} GB are to be fetched, "
            f"{free / 1e9:,.2f} GB are free"
        )


@contextmanager
def _telling(folder: Path, what: str, of: int, tell: Tell) -> Iterator[None]:
    """Tells how many bytes have arrived, whoever writes them, until the block ends."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            tell(what, min(of, _bytes_below(folder)), of)

    thread = threading.Thread(target=look, name="hub-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    tell(what, of, of)


def _bytes_below(folder: Path) -> int:
    """Returns the bytes on the disk below a folder whose files come and go, without the unused rest of a file's last block."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found = (Path(base) / name).stat()
                total += min(
                    found.st_size, found.st_blocks * BLOCK_BYTES
                )  # the Hub's client may make a file long at once
    return total
