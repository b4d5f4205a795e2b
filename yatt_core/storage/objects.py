"""Objects below one address on an S3 store, by name: written whole or not at all, listed, read, deleted.

Consumes names relative to the address, and paths of local files. Endpoint, region and credentials are taken from the environment
by botocore. A request that fails for want of a connection, by its time limit, by throttling or with a 5xx is tried again with
growing pauses; what is raised then is of `failures`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from yatt_core.manifests import FileEntry
from yatt_core.storage.failures import code_of, refusals

ATTEMPTS = 4
"""At a request."""
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
PART_BYTES = 64 << 20
"""Of an object that is sent in parts; smaller than two of them it is sent at once. With 10,000 parts at most, 625 GiB."""
TRANSFERS = 4
"""Files on their way at once."""
DELETED_AT_ONCE = 1000
MISSING = frozenset({"404", "NoSuchKey"})


class ObjectStore:
    """The objects below `s3://BUCKET/PREFIX`; connects with the first request, in whichever process that is made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""

    @cached_property
    def _system(self) -> Any:
        from s3fs import S3FileSystem

        settings = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        }
        # One client a process. No cache of listings: another process may have changed what stands there.
        system = S3FileSystem(config_kwargs=settings, use_listings_cache=False)
        system.retries = 2  # beside botocore's, which end where an answer begins
        return system

    def check(self) -> None:
        """Looks whether the bucket is there and may be listed. Raises as `failures.refusals`."""
        with refusals(self.url, "looking at it"):
            self._system.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)

    def sizes(self, below: str) -> dict[str, int]:
        """Bytes of all objects whose names begin so, by name."""
        found: dict[str, int] = {}
        more: dict[str, str] = {}
        with refusals(self.url, f"listing {below}"):
            while True:
                page = self._system.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix + below, **more)
                for entry in page.get("Contents", []):
                    found[entry["Key"].removeprefix(self._prefix)] = int(entry["Size"])
                if not page.get("IsTruncated"):
                    return found
                more = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, name: str) -> bytes | None:
        """An object's bytes; none where there is none."""
        with refusals(self.url, f"reading {name}"):
            try:
                data: bytes = self._system.cat_file(self._path(name), max_concurrency=1)  # one request, no look before
            except FileNotFoundError as error:
                if code_of(error) not in MISSING:
                    raise
                return None
        return data

    def entry(self, name: str, size: int) -> FileEntry:
        """Size and sha256 of an object of this size, read piece by piece."""
        digest, read = hashlib.sha256(), 0
        with refusals(self.url, f"reading {name}"):
            for start in range(0, size, PART_BYTES):
                piece: bytes = self._system.cat_file(self._path(name), start=start, end=min(start + PART_BYTES, size))
                digest.update(piece)
                read += len(piece)
        return FileEntry(read, digest.hexdigest())

    def write(self, name: str, data: bytes) -> None:
        """Writes an object, or replaces it; whoever sees it sees all of it."""
        with refusals(self.url, f"writing {name}"):
            self._system.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> None:
        """Writes an object that is not there yet; one that is stays as it is."""
        with refusals(self.url, f"writing {name}"):
            try:
                self._system.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return
            except OSError as error:
                if code_of(error) != "PreconditionFailed":
                    raise

    def upload(self, files: Mapping[str, Path]) -> None:
        """Writes files as objects, in any order."""
        with refusals(self.url, f"writing {len(files)} objects, {', '.join(sorted(files)[:1])} among them"):
            paths = [str(path) for path in files.values()]
            names = [self._path(name) for name in files]
            self._system.put(paths, names, batch_size=TRANSFERS, chunksize=PART_BYTES)

    def download(self, files: Mapping[str, Path]) -> None:
        """Writes objects into files, whose folders have to be there."""
        with refusals(self.url, f"reading {len(files)} objects, {', '.join(sorted(files)[:1])} among them"):
            names = [self._path(name) for name in files]
            paths = [str(path) for path in files.values()]
            self._system.get(names, paths, batch_size=TRANSFERS)

    def delete(self, names: Collection[str]) -> None:
        """Deletes objects; those that are gone already are no error."""
        from botocore.exceptions import ClientError

        keys = [{"Key": self._prefix + name} for name in names]
        with refusals(self.url, f"deleting {len(names)} objects"):
            if len(keys) == 1:
                self._system.rm_file(self._path(*names))
                return
            for start in range(0, len(keys), DELETED_AT_ONCE):
                part = {"Objects": keys[start : start + DELETED_AT_ONCE], "Quiet": True}
                answer = self._system.call_s3("delete_objects", Bucket=self._bucket, Delete=part)
                # What it refuses of a list is in an answer that is none of an error.
                for refused in answer.get("Errors", []):
                    raise ClientError({"Error": refused}, "DeleteObjects")

    def abort_uploads(self, below: str) -> int:
        """Gives back the room of objects that were sent in parts and never completed; returns how many there were."""
        with refusals(self.url, f"ending uploads below {below}"):
            page = self._system.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix + below)
            uploads = page.get("Uploads", [])
            for upload in uploads:
                self._system.abort_mpu(self._bucket, upload["Key"], upload["UploadId"])
        return len(uploads)

    def _path(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{name}"
