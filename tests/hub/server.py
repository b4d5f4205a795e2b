"""A small server that speaks the parts of the Hub's API by which models and datasets are fetched, with its faults on request.

Consumes repositories in memory: commits with files, branches, who may read them. Produces answers like those of the Hub, and a
list of what was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".parquet")
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/([^/?]+)")
_RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """A repository.

    commits: the files of each commit.
    branches: the commit of each branch.
    reader: the token that may read it; None for everyone.
    gated: whether a token that may not read it is told that it must be asked for.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    reader: str | None = None
    gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Adds a commit to a branch; returns its name."""
        parts = [f"{name}\0{hashlib.sha1(data).hexdigest()}" for name, data in sorted(files.items())]
        name = hashlib.sha1("\n".join([branch, str(len(self.commits)), *parts]).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name


@dataclass
class Hub:
    """The server's state.

    expired: tokens that are refused, whatever they ask for.
    cut: names of files that are shorter than the list says; damaged: whose last byte is another.
    held: names of files of which half is sent, and the rest once `released` is set.
    asked: method and path of each request.
    """

    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def add(self, kind: str, repo: str, files: Mapping[str, bytes], **facts: Any) -> Repository:
        """Adds a repository with one commit on `main`."""
        made = Repository(**facts)
        made.commit(files)
        self.repositories[kind, repo] = made
        return made

    def fetched(self, name: str) -> int:
        """Returns how often the contents of a file were asked for."""
        return sum(each.startswith("GET ") and each.endswith(f"/{name}") for each in self.asked)


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder as those of a commit."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves on a free port of this machine."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {unquote(path)}")
        if found := _API.fullmatch(path):
            kind, repo, what, revision = found.groups()
            repository = self._readable(kind.removesuffix("s"), repo)
            if repository is not None and (commit := self._commit(repository, unquote(revision))) is not None:
                self._say(repo, commit, repository.commits[commit], what)
        elif found := _RESOLVE.fullmatch(path):
            dataset, repo, revision, name = found.groups()
            repository = self._readable("dataset" if dataset else "model", repo)
            if repository is not None and (commit := self._commit(repository, unquote(revision))) is not None:
                self._give(commit, repository.commits[commit], unquote(name))
        else:
            self._refuse(404, "", "no such page")

    def _readable(self, kind: str, repo: str) -> Repository | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repository = self.hub.repositories.get((kind, repo))
        if token in self.hub.expired:
            self._refuse(401, "", "Invalid username or password.")
        elif repository is None or (repository.reader not in (None, token) and not repository.gated):
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif repository.reader not in (None, token):
            self._refuse(403 if token else 401, "GatedRepo", "Access is restricted")
        else:
            return repository
        return None

    def _commit(self, repository: Repository, revision: str) -> str | None:
        commit = repository.branches.get(revision, revision)
        if commit in repository.commits:
            return commit
        self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def _say(self, repo: str, commit: str, files: Mapping[str, bytes], what: str) -> None:
        if what == "revision":
            self._send(
                200, json.dumps({"_id": "1", "id": repo, "sha": commit, "siblings": [], "private": False}).encode()
            )
            return
        listed: list[dict[str, Any]] = []
        for folder in sorted({parent.as_posix() for name in files for parent in Path(name).parents} - {"."}):
            listed.append({"type": "directory", "path": folder, "oid": "0" * 40, "size": 0})
        for name, data in sorted(files.items()):
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
            if name.endswith(LARGE):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            listed.append(entry)
        self._send(200, json.dumps(listed).encode())

    def _give(self, commit: str, files: Mapping[str, bytes], name: str) -> None:
        data = files.get(name)
        if data is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        digest = hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else _oid(data)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if name.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{digest}"'}
        if name in self.hub.cut:
            data = data[: len(data) // 2]
        if name in self.hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status = 200
        whole = len(data)
        if wanted:
            first = int(wanted[1])
            last = int(wanted[2] or whole - 1)
            data = data[first : last + 1]
            status = 206
            headers["Content-Range"] = f"bytes {first}-{min(last, whole - 1)}/{whole}"
        self._send(status, data, headers, held=name in self.hub.held)

    def _refuse(self, status: int, code: str, text: str) -> None:
        headers = {"X-Error-Message": text, **({"X-Error-Code": code} if code else {})}
        self._send(status, json.dumps({"error": text}).encode(), headers)

    def _send(self, status: int, data: bytes, headers: Mapping[str, str] | None = None, held: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            half = len(data) // 2
            self.wfile.write(data[:half])
            if held:
                self.wfile.flush()
                self.hub.released.wait(60)
            with suppress(OSError):  # whoever asked was killed
                self.wfile.write(data[half:])
