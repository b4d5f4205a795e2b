"""A checkpoint that several ranks write together: each writes its share, and the first publishes once all are durable.

Consumes the frozen state of each rank. The ranks share a disk but exchange no messages: a rank leaves its files in a
hidden folder of the attempt and, last, a note that lists them with their digests. Produces the published checkpoint;
an attempt that loses a rank leaves nothing but that hidden folder, which the next sweep deletes.
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
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint, require_room, writing
from yatt_core.errors import DataError, InfrastructureError, StorageFullError
from yatt_core.manifests import FileEntry
from yatt_core.protocols.engines import FrozenState
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.wire.part_files import SUFFIX, PartFiles

FILES = "files"


@dataclass(frozen=True, slots=True)
class CheckpointAttempt:
    """An attempt of all ranks at one checkpoint.

    folder: the checkpoint's final folder, relative to the run folder.
    name: names this attempt among others at the same checkpoint; the same on all ranks.
    identity: without the digest of the weights, which is not known yet.
    """

    run_folder: Path
    folder: str
    name: str
    identity: CheckpointIdentity

    poll_seconds: ClassVar[float] = 0.05

    @property
    def target(self) -> Path:
        """The checkpoint's final folder."""
        return self.run_folder / self.folder

    @property
    def shares(self) -> Path:
        """The hidden folder for the ranks' shares. A late rank of another attempt cannot write to it."""
        return self.target.with_name(f".{self.target.name}.{self.name}.shares")

    def note(self, rank: int) -> Path:
        """Returns the file with which a rank reports that its share is durable, or that it has failed."""
        return self.shares / f"rank-{rank:05d}.json"

    def write(self, frozen: FrozenState) -> None:
        """Writes a rank's share and its note.

        Raises `StorageFullError` if the disk is too small and `InfrastructureError` if writing fails; the rank's files
        are then removed.
        """
        durable.make_folder(self.target.parent)
        try:
            with writing(self.target, frozen.nbytes):
                require_room(self.target, frozen.nbytes)
                (self.shares / FILES).mkdir(parents=True, exist_ok=True)
                entries = frozen(self.shares / FILES)
                files = {name: asdict(entry) for name, entry in entries.items()}
                self._tell(frozen.rank, {"files": files, "weights_digest": frozen.weights_digest})
        except InfrastructureError as error:
            self._give_up(frozen.rank, error)
            raise

    def publish(self, frozen: FrozenState, patience: float, abandoned: Event) -> CheckpointReceipt:
        """Waits for the shares of all ranks and publishes the checkpoint. Called on one rank, after its `write`.

        patience: seconds to wait.
        abandoned: ends the wait.

        Raises the error of a rank that failed, and `InfrastructureError` if a rank does not report in time. The
        shares are removed in any case.
        """
        started = time.perf_counter()
        try:
            notes = self._notes(frozen.ranks, time.monotonic() + patience, abandoned)
            entries = {name: FileEntry(**entry) for note in notes for name, entry in note["files"].items()}
            digest = self._examined(entries)
            known = next((note["weights_digest"] for note in notes if note["weights_digest"]), None)

            def adopt(partial: Path) -> Mapping[str, FileEntry]:
                for name in entries:
                    (partial / name).parent.mkdir(parents=True, exist_ok=True)
                    (self.shares / FILES / name).rename(partial / name)
                return entries

            identity = replace(self.identity, weights_digest=known or digest)
            receipt = publish_checkpoint(
                run_folder=self.run_folder, folder=self.folder, identity=identity, write=adopt, needed_bytes=0
            )
        finally:
            shutil.rmtree(self.shares, ignore_errors=True)
        return replace(receipt, seconds=time.perf_counter() - started)

    def _examined(self, entries: Mapping[str, FileEntry]) -> str:
        """Checks that the ranks' parts make up all tensors, and returns the weights' digest; empty without weights."""
        digest = ""
        try:
            for subfolder in sorted({str(PurePosixPath(name).parent) for name in entries if has_parts(name)}):
                parts = PartFiles(self.shares / FILES / name for name in entries if _is_in(name, subfolder))
                parts.require_whole()
                if subfolder == WEIGHTS:
                    digest = parts.digest()
        except DataError as error:
            raise InfrastructureError(f"{self.target}: the shares do not fit together: {error}") from error
        return digest

    def _tell(self, rank: int, fields: Mapping[str, Any]) -> None:
        self._write_note(rank, {"identity": asdict(self.identity), **fields})

    def _tell_failure(self, rank: int, error: InfrastructureError) -> None:
        self._tell(rank, {"failure": str(error), "full": isinstance(error, StorageFullError)})

    def _write_note(self, rank: int, fields: Mapping[str, Any]) -> None:
        durable.write_json(self.note(rank), fields)

    def _read_note(self, rank: int) -> dict[str, Any] | None:
        try:
            note: dict[str, Any] = json.loads(self.note(rank).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return note

    def _notes(self, ranks: int, deadline: float, abandoned: Event) -> list[dict[str, Any]]:
        """Waits for the notes of all ranks."""
        found: dict[int, dict[str, Any]] = {}
        while True:
            for rank in sorted(set(range(ranks)) - set(found)):
                if (note := self._read(rank)) is not None:
                    found[rank] = note
            if len(found) == ranks:
                return [found[rank] for rank in range(ranks)]
            missing = sorted(set(range(ranks)) - set(found))
            if time.monotonic() > deadline or abandoned.wait(self.poll_seconds):
                raise InfrastructureError(f"{self.target}: the share of rank {missing[0]} of {ranks} is missing")

    def _read(self, rank: int) -> dict[str, Any] | None:
        """Returns a rank's note, None if there is none yet. Raises the error that the note reports."""
        if (note := self._read_note(rank)) is None:
            return None
        if "failure" in note:
            kind = StorageFullError if note["full"] else InfrastructureError
            raise kind(f"rank {rank}: {note['failure']}")
        if note["identity"] != asdict(self.identity):
            raise InfrastructureError(f"{self.note(rank)}: reports another checkpoint than {self.identity}")
        return note

    def _give_up(self, rank: int, error: InfrastructureError) -> None:
        """Removes what a rank has written, and tells the publishing rank, which removes everything."""
        if rank == 0:
            shutil.rmtree(self.shares, ignore_errors=True)
            return
        for path in self.shares.rglob(f"rank-{rank:05d}-of-*"):
            path.unlink(missing_ok=True)
        with suppress(InfrastructureError):  # the driver asks this rank too
            self._tell_failure(rank, error)


def has_parts(name: str) -> bool:
    """Returns True for a file of tensor parts."""
    return name.endswith(SUFFIX) and "/" in name


def _is_in(name: str, subfolder: str) -> bool:
    return has_parts(name) and str(PurePosixPath(name).parent) == subfolder
