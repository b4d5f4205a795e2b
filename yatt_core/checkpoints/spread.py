"""A checkpoint of ranks with disks of their own: each rank sends its share to the durable tier, the first one publishes.

Consumes the frozen state of each rank. A rank's note, an object too, says which files it has sent and which parts of
tensors they hold. Produces the published checkpoint on the durable tier, manifest last; on each disk, the files that
were written there remain, without a manifest, and a later fetch uses them. The names of files of tensors contain the
attempt's number, and of several attempts that publish other tensors the latest prevails, so that a rank that is lost to
the driver, but goes on, changes nothing; other files have the same bytes in every attempt.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any, ClassVar

from yatt_core import durable
from yatt_core.checkpoints.contents import WEIGHTS
from yatt_core.checkpoints.publish import CheckpointIdentity, identity_in, receipt_of, require_room, writing
from yatt_core.checkpoints.shares import FILES, CheckpointAttempt, has_parts
from yatt_core.checkpoints.verify import CHECKPOINT_KIND, listed_files
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.manifests import MANIFEST, FileEntry, Manifest, load_manifest, publish_manifest
from yatt_core.protocols.engines import FrozenState
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.storage.run_store import RunStore
from yatt_core.wire.part_files import PartFiles, StoredPart, stored_parts
from yatt_core.wire.parts import Box


@dataclass(frozen=True, slots=True)
class SpreadAttempt(CheckpointAttempt):
    """An attempt of ranks with disks of their own at one checkpoint.

    store: the durable tier.
    """

    store: RunStore

    poll_seconds: ClassVar[float] = 0.5

    @property
    def notes(self) -> str:
        """The folder of the ranks' notes on the durable tier."""
        return str(PurePosixPath(self.folder).with_name(self.shares.name))

    def write(self, frozen: FrozenState) -> None:
        """Writes a rank's share, sends it, and then its note. Raises as `CheckpointAttempt.write` and the durable tier do."""
        durable.make_folder(self.target.parent)
        try:
            with writing(self.target, frozen.nbytes):
                require_room(self.target, frozen.nbytes)
                own = self.shares / FILES / str(frozen.rank)
                own.mkdir(parents=True, exist_ok=True)
                entries = frozen(own, f".a{self.identity.attempt}")
            self.store.send(self.folder, {name: own / name for name in entries})
            parts = [_described(name, part) for name in entries if has_parts(name) for part in stored_parts(own / name)]
            files = {name: asdict(entry) for name, entry in entries.items()}
            self._move(own, list(entries))
            self._tell(frozen.rank, {"files": files, "parts": parts, "weights_digest": frozen.weights_digest})
        except InfrastructureError as error:
            shutil.rmtree(self.shares / FILES / str(frozen.rank), ignore_errors=True)
            if frozen.rank > 0:
                with suppress(InfrastructureError):  # the driver asks this rank too
                    self._tell_failure(frozen.rank, error)
            raise

    def publish(self, frozen: FrozenState, patience: float, abandoned: Event) -> CheckpointReceipt:
        """Waits for the notes of all ranks and publishes the checkpoint. Raises as `CheckpointAttempt.publish` does."""
        started = time.perf_counter()
        try:
            notes = self._notes(frozen.ranks, time.monotonic() + patience, abandoned)
            entries = {name: FileEntry(**entry) for note in notes for name, entry in note["files"].items()}
            known = next((note["weights_digest"] for note in notes if note["weights_digest"]), None)
            digest = self._examine(notes, entries, known)
            identity = replace(self.identity, weights_digest=digest)
            self.shares.mkdir(parents=True, exist_ok=True)
            publish_manifest(self.shares, CHECKPOINT_KIND, asdict(identity), entries)
            manifest = self._settle(identity)
        finally:
            shutil.rmtree(self.shares, ignore_errors=True)
            with suppress(InfrastructureError):  # the next sweep deletes the notes
                self.store.remove(self.notes)
        size = sum(entry.size for entry in manifest.files.values())
        return receipt_of(
            folder=self.folder,
            identity=identity,
            manifest_sha256=manifest.sha256,
            size=size,
            seconds=time.perf_counter() - started,
        )

    def _settle(self, identity: CheckpointIdentity) -> Manifest:
        """Publishes this attempt's manifest unless another attempt has published the same tensors; returns the one there.

        Raises `InfrastructureError` if a later attempt has published other tensors.
        """
        own = (self.shares / MANIFEST).read_bytes()
        there = self.store.create(self.folder, MANIFEST, own)
        if there != own:
            (self.shares / MANIFEST).write_bytes(there)
            with suppress(DataError):
                manifest = load_manifest(self.shares, CHECKPOINT_KIND)
                if (found := identity_in(manifest.fields)) is not None:
                    identity.require_latest(found, self.target)
                    if identity.names_same(found):
                        return manifest
            (self.shares / MANIFEST).write_bytes(own)
            self.store.write(self.folder, MANIFEST, own)
        return load_manifest(self.shares, CHECKPOINT_KIND)

    def _examine(self, notes: list[dict[str, Any]], entries: Mapping[str, FileEntry], known: str | None) -> str:
        """Checks that the ranks' parts make up all tensors, and returns the weights' digest.

        For the digest, the weights' files of other disks are fetched.
        """
        described = [each for note in notes for each in note["parts"]]
        by_subfolder: dict[str, list[StoredPart]] = {}
        for each in described:
            by_subfolder.setdefault(str(PurePosixPath(each["file"]).parent), []).append(self._part(each))
        try:
            for parts in by_subfolder.values():
                PartFiles(parts=parts).require_whole()
            if known is not None or WEIGHTS not in by_subfolder:
                return known or ""
            lacking = {str(part.path.relative_to(self.target)) for part in by_subfolder[WEIGHTS]}
            self._fetch({name for name in lacking if not (self.target / name).exists()})
            return PartFiles(parts=by_subfolder[WEIGHTS]).digest()
        except DataError as error:
            raise InfrastructureError(f"{self.target}: the shares do not fit together: {error}") from error

    def _fetch(self, names: set[str]) -> None:
        for name in names:
            (self.target / name).parent.mkdir(parents=True, exist_ok=True)
        self.store.receive(self.folder, {name: self.target / name for name in names})

    def _part(self, described: Mapping[str, Any]) -> StoredPart:
        box = Box(tuple(described["offsets"]), tuple(described["sizes"]))
        path = self.target / described["file"]
        return StoredPart(
            path=path,
            name=described["name"],
            shape=tuple(described["shape"]),
            box=box,
            kind=described["kind"],
            start=described["start"],
        )

    def _move(self, own: Path, names: list[str]) -> None:
        """Leaves a rank's files under the checkpoint's name, for a restore; without a manifest, nothing reads them."""
        with durable.refusals(f"{self.target}: cannot be written to"):
            (self.target / MANIFEST).unlink(missing_ok=True)
            for name in names:
                (self.target / name).parent.mkdir(parents=True, exist_ok=True)
                (own / name).rename(self.target / name)

    def _write_note(self, rank: int, fields: Mapping[str, Any]) -> None:
        self.store.write(self.notes, self.note(rank).name, json.dumps(fields).encode())

    def _read_note(self, rank: int) -> dict[str, Any] | None:
        data = self.store.read(self.notes, self.note(rank).name)
        return None if data is None else dict(json.loads(data))


def bring_checkpoint(store: RunStore, run_folder: Path, folder: str, manifest_sha256: str, renew: bool) -> None:
    """Fetches the files of a checkpoint that this disk lacks; with `renew`, also those that do not match the manifest.

    Does nothing if the durable tier lacks the checkpoint: its verification then says what is missing.
    """
    if not renew:
        with suppress(DataError):
            listed_files(run_folder, folder, manifest_sha256)
            return
    store.fetch(folder, manifest_sha256)


def _described(name: str, part: StoredPart) -> dict[str, Any]:
    """Returns what a note says about a part."""
    return {
        "file": name, "name": part.name, "shape": part.shape, "offsets": part.box.offsets, "sizes": part.box.sizes,
        "kind": part.kind, "start": part.start,
    }  # fmt: skip
