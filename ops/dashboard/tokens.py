"""Named tokens: who may stop, resume or change a run over HTTP.

Consumes and produces `tokens.json` in the home folder, mode 0600, which contains only digests; a token itself is shown once,
when it is created. The file is read for every check, which is cheap, so that a revoked token is refused immediately.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from yatt_core.durable import refusal
from yatt_core.errors import ConfigurationError

FILE, LOCK = "tokens.json", ".tokens.lock"
PREFIX = "yatt_"
WRONG_PLACE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR),
    }
)
"""System errors that can be avoided by choosing another folder; all others are treated as faults of the disk."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as stored.

    digest: sha256 of the token.
    created_at: milliseconds since 1970.
    """

    name: str
    digest: str
    created_at: int


class TokenStore:
    """The tokens of a home folder. Safe to use from several processes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = folder / LOCK

    def create(self, name: str) -> str:
        """Creates a token and returns it. Raises `ConfigurationError` if the name is invalid or taken."""
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"token name {name!r:.80}: expected lower-case letters, digits, '.', '_' and '-', such as alice or ci-2"
            )
        token = PREFIX + secrets.token_urlsafe(32)
        with self._changing() as tokens:
            if any(known.name == name for known in tokens):
                raise ConfigurationError(
                    f"a token named {name} already exists; revoke it first, or choose another name"
                )
            tokens.append(NamedToken(name, digest_of(token), int(time.time() * 1000)))
        return token

    def revoke(self, name: str) -> None:
        """Revokes a token, which also ends its sessions. Raises `ConfigurationError` if the name is unknown."""
        with self._changing() as tokens:
            left = [known for known in tokens if known.name != name]
            if len(left) == len(tokens):
                names = ", ".join(known.name for known in tokens) or "none"
                raise ConfigurationError(f"there is no token named {name!r:.80}; existing tokens: {names}")
            tokens[:] = left

    def all(self) -> tuple[NamedToken, ...]:
        """Returns the tokens in order of creation.

        Raises `ConfigurationError` if other users could read or write the file, `InfrastructureError` for a fault of the disk.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return ()
        except OSError as error:
            if error.errno not in WRONG_PLACE:
                raise refusal(f"{self._path}: cannot be read", error) from None
            raise ConfigurationError(f"{self._path}: cannot be read: {error.strerror}") from None
        with open(descriptor, encoding="utf-8") as stream:  # noqa: PTH123 - the mode of this open file is checked
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigurationError(
                    f"{self._path}: its mode is {mode:04o}, which gives other users access; expected 0600"
                )
            try:
                return tuple(NamedToken(**row) for row in json.load(stream)["tokens"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigurationError(f"{self._path}: not a token file: {error!r}") from None

    def name_of(self, token: str) -> str | None:
        """Returns a token's name; None if it is unknown or revoked. Compares all digests, each in constant time."""
        digest, found = digest_of(token), None
        for known in (NamedToken("", _NOBODY, 0), *self.all()):
            if hmac.compare_digest(digest, known.digest):
                found = known.name
        return found or None

    def digest_named(self, name: str) -> str | None:
        """Returns the digest of the token with this name; None if there is none."""
        return next((known.digest for known in self.all() if known.name == name), None)

    @contextmanager
    def _changing(self) -> Iterator[list[NamedToken]]:
        """Yields the tokens for modification, and writes them if the block ends without an error.

        Raises `ConfigurationError` if the folder is not writable, `InfrastructureError` for a fault of the disk.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._lock, "w") as lock:  # noqa: PTH123 - a lock needs the open file
                fcntl.flock(lock, fcntl.LOCK_EX)
                tokens = list(self.all())
                yield tokens
                self._write(tokens)
        except OSError as error:
            if error.errno not in WRONG_PLACE:
                raise refusal(f"{self._path}: cannot be written", error) from None
            raise ConfigurationError(
                f"{self._path}: cannot be written: {error.strerror}: {error.filename}; "
                "choose a home folder that this user can write to, with --home or $YATT_HOME"
            ) from None

    def _write(self, tokens: list[NamedToken]) -> None:
        text = json.dumps({"tokens": [asdict(token) for token in tokens]}, indent=1) + "\n"
        fresh = self._path.with_name(f".{FILE}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - opened with its mode
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self._path)


def digest_of(token: str) -> str:
    """Returns the stored digest of a token. A token has 256 random bits, so a plain hash cannot be brute-forced."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
