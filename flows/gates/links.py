"""Signed links that decide an approval without signing in.

Consumes a key in the home folder, made on first use and readable by its owner only, and the question that the link is about.
Produces and checks tokens. A token is valid for one question until it expires; the question can be decided only once, and so
can the link.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from db.core.approval_rules import Approval
from db.ledger import Ledger
from flows.run.home import Home
from flows.run.pages import Pages
from yatt_core import durable
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec.sections.gates import GatesSpec

log = logging.getLogger("yatt_core.flow")
KEY_FILE = "approval-links.key"
KEY_BYTES = 32
MS_PER_HOUR = 3_600_000
Address = Callable[[Ledger, str, str], str]
"""Returns what a notification says of where to decide a question of a run, by the question's key; empty if nowhere."""


def sign(key: bytes, approval: Approval, expires_ms: int) -> str:
    """Returns the token of a link to an approval.

    expires_ms: milliseconds since 1970.
    """
    text = f"{approval.id} {approval.subject} {approval.key} {approval.asked_at} {expires_ms}"
    return f"{expires_ms}.{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"


def is_valid(key: bytes, approval: Approval, token: str, now_ms: int) -> bool:
    """Returns True for a token that was signed for this approval and has not expired."""
    expires = token.partition(".")[0]
    if not (expires.isascii() and expires.isdigit() and len(expires) < 16):
        return False
    same = hmac.compare_digest(sign(key, approval, int(expires)).encode(), token.encode("utf-8", "surrogatepass"))
    return same and now_ms < int(expires)


def link_key(home: Home) -> bytes:
    """Returns the home's key, which is made if there is none.

    Raises `ConfigurationError` for a key file that others may read or that has the wrong length; `InfrastructureError` of
    the disk.
    """
    path = home.folder / KEY_FILE
    with durable.refusals(f"{path}: cannot be read or made"):
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode & 0o777
        key = path.read_bytes()
    if mode & 0o077 or len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"{path}: expected {KEY_BYTES} bytes with mode 0600, not {len(key)} with {mode:04o}; delete it, and new links "
            "get a new key"
        )
    return key


def _make(path: Path) -> None:
    """Makes the key as a whole or not at all; of two processes at the same moment, the first one's stays."""
    fresh = path.with_name(f".{KEY_FILE}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - opened with its mode
            stream.write(secrets.token_bytes(KEY_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
        durable.sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _signed(home: Home, approval: Approval, expires_ms: int) -> str:
    """Returns what makes a link of a page's address; nothing without a usable key, so that notifications go out anyway."""
    try:
        return f"/link?token={sign(link_key(home), approval, expires_ms)}"
    except (ConfigurationError, InfrastructureError) as error:
        log.warning("approval %d: its notification has no signed link: %s", approval.id, error)
        return ""


def addresses(home: Home, pages: Pages, gates: GatesSpec) -> Address:
    """Returns what tells people where to decide: a page of the dashboard, signed if the spec wants it, or a command."""

    def address(ledger: Ledger, run: str, key: str) -> str:
        approval = ledger.approvals.asked(run, key)
        if approval is None:
            return ""
        command = f"`yatt approve {approval.id} --why ...`"
        if not pages.dashboard:
            return command
        page = f"{pages.dashboard}/approvals/{approval.id}"
        if gates.links and approval.decision is None:
            page += _signed(home, approval, ledger.approvals.now() + round(gates.link_hours * MS_PER_HOUR))
        return f"{page} or {command}"

    return address
