"""Objects below one address on an S3 store, by name: written as a whole or not at all, listed, read, deleted.

Consumes names relative to the address, and paths of local files. Botocore takes endpoint, region and credentials
from the environment. Requests that fail with a connection error, a timeout, throttling or a 5xx response are
retried with increasing delays; what is then raised comes from `failures`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from yatt_core.manifests import FileEntry
from yatt_core.progress import advanced
from yatt_core.storage.failures import code_of, refusals

ATTEMPTS = 4
"""Attempts per request."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
PART_BYTES = 64 << 20
"""Part size of large objects; objects smaller than two parts are sent in one request.

With at most 10,000 parts, an object may have up to 625 GiB.
"""
TRANSFERS = 4
"""Number of files transferred at once."""
DELETED_AT_ONCE = 1000
MISSING = frozenset({"404", "NoSuchKey"})
BEYOND = "InvalidRange"


class ObjectStore:
    """The objects below `s3://BUCKET/PREFIX`; connects with the first request, in the process that makes it."""

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
        # One client per process. Listings are not cached: another process may have changed the objects.
        system = S3FileSystem(config_kwargs=settings, use_listings_cache=False)
        system.retries = 2  # in addition to botocore's, which end when a response begins
        return system

    def check(self) -> None:
        """Checks that the bucket exists and may be listed. Raises the errors of `failures.refusals`."""
        with refusals(self.url, "checking access"):
            self._system.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)

    def sizes(self, below: str) -> dict[str, int]:
        """Returns the bytes of all objects whose names start with `below`, by name."""
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
        """Returns an object's bytes; None if it does not exist."""
        with refusals(self.url, f"reading {name}"):
            try:
                data: bytes = self._system.cat_file(
                    self._path(name), max_concurrency=1
                )  # a single request, without a preceding HEAD
            except FileNotFoundError as error:
                if code_of(error) not in MISSING:
                    raise
                return None
        return data

    def entry(self, name: str, size: int) -> FileEntry:
        """Returns size and sha256 of an object of the given size, reading it piece by piece."""
        digest = hashlib.sha256()
        read = 0
        with refusals(self.url, f"reading {name}"):
            for start in range(0, size, PART_BYTES):
                piece: bytes = self._system.cat_file(self._path(name), start=start, end=min(start + PART_BYTES, size))
                digest.update(piece)
                read += len(piece)
        return FileEntry(read, digest.hexdigest())

    def pieces(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Yields spans of an object, each as first byte and the byte after the last, in order; a few are in memory at once.

        A span is shorter if the object ends earlier, and empty if it does not exist.
        """
        path = self._path(name)
        for number in range(0, len(spans), TRANSFERS):
            asked = spans[number : number + TRANSFERS]
            starts, ends = ([span[place] for span in asked] for place in (0, 1))
            with refusals(self.url, f"reading {name}"):
                found = self._system.cat_ranges([path] * len(asked), starts, ends, batch_size=TRANSFERS)
                pieces = [_piece(each, span) for each, span in zip(found, asked, strict=True)]
            advanced()
            yield from pieces

    def write(self, name: str, data: bytes) -> None:
        """Writes or replaces an object; readers never see a part of it."""
        with refusals(self.url, f"writing {name}"):
            self._system.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> None:
        """Writes an object unless it already exists; an existing one is left unchanged."""
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
        with refusals(self.url, f"writing {len(files)} objects, including {', '.join(sorted(files)[:1])}"):
            paths = [str(path) for path in files.values()]
            names = [self._path(name) for name in files]
            self._system.put(paths, names, batch_size=TRANSFERS, chunksize=PART_BYTES)

    def download(self, files: Mapping[str, Path]) -> None:
        """Writes objects to files, whose folders must exist."""
        from yatt_core.storage.arriving import ArrivingBytes

        with refusals(self.url, f"reading {len(files)} objects, including {', '.join(sorted(files)[:1])}"):
            names = [self._path(name) for name in files]
            paths = [str(path) for path in files.values()]
            self._system.get(names, paths, batch_size=TRANSFERS, callback=ArrivingBytes())

    def delete(self, names: Collection[str]) -> None:
        """Deletes objects; missing ones are ignored."""
        from botocore.exceptions import ClientError

        keys = [{"Key": self._prefix + name} for name in names]
        with refusals(self.url, f"deleting {len(names)} objects"):
            if len(keys) == 1:
                self._system.rm_file(self._path(*names))
                return
            for start in range(0, len(keys), DELETED_AT_ONCE):
                part = {"Objects": keys[start : start + DELETED_AT_ONCE], "Quiet": True}
                answer = self._system.call_s3("delete_objects", Bucket=self._bucket, Delete=part)
                # Objects that could not be deleted are listed in a successful response.
                for refused in answer.get("Errors", []):
                    raise ClientError({"Error": refused}, "DeleteObjects")

    def abort_uploads(self, below: str) -> int:
        """Aborts multipart uploads that were never completed, which frees their space; returns how many there were."""
        with refusals(self.url, f"aborting uploads below {below}"):
            page = self._system.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix + below)
            uploads = page.get("Uploads", [])
            for upload in uploads:
                self._system.abort_mpu(self._bucket, upload["Key"], upload["UploadId"])
        return len(uploads)

    def _path(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{name}"


def _piece(found: bytes | Exception, span: tuple[int, int]) -> bytes:
    """Returns a span that was asked for. A store that knows no spans sends the whole object."""
    if isinstance(found, Exception):
        if code_of(found) not in MISSING | {BEYOND}:
            raise found
        return b""
    start, end = span
    return found if len(found) <= end - start else found[start:end]
