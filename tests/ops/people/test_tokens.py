"""Named tokens: stored as digests in a file only its owner can read, compared in constant time, and revocable."""

from __future__ import annotations

import errno
import hmac
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.people import tokens
from ops.people.tokens import FILE, TokenStore, digest_of
from tests.ops.conftest import Yatt
from tests.ops.conftest import home as home
from tests.ops.conftest import yatt as yatt
from tests.read_only import read_only
from yatt_core.errors import ConfigurationError, InfrastructureError, StorageFullError


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path)


def name_of(store: TokenStore, token: str) -> str | None:
    person = store.person_of(token)
    return None if person is None else person.name


def test_a_token_names_its_holder_and_only_its_digest_is_kept(store: TokenStore, tmp_path: Path) -> None:
    token = store.create("alice")
    assert name_of(store, token) == "alice"
    assert name_of(store, token[:-1]) is None
    assert name_of(store, "") is None
    text = (tmp_path / FILE).read_text()
    assert token not in text and digest_of(token) in text
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_revoked_token_is_invalid_at_once_in_every_process(store: TokenStore, tmp_path: Path) -> None:
    alice = store.create("alice")
    bob = store.create("bob")
    elsewhere = TokenStore(tmp_path)
    assert name_of(elsewhere, alice) == "alice"
    store.revoke("alice")
    assert (name_of(elsewhere, alice), name_of(elsewhere, bob)) == (None, "bob")
    with pytest.raises(ConfigurationError, match=r"'alice'.*bob"):
        store.revoke("alice")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_accessible_to_others_is_refused(store: TokenStore, tmp_path: Path, mode: int) -> None:
    token = store.create("alice")
    (tmp_path / FILE).chmod(mode)
    with pytest.raises(ConfigurationError, match=f"{mode:04o}.*0600"):
        name_of(store, token)


def test_a_symlink_is_refused_as_a_token_file(store: TokenStore, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"tokens": [{"name": "mallory", "digest": "' + digest_of("x") + '", "created_at": 0}]}')
    other.chmod(0o600)
    (tmp_path / FILE).symlink_to(other)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        name_of(store, "x")


@pytest.mark.parametrize("name", ["", "Alice", "a b", "a/b", "../a", "a\n", "-a", "a" * 65, "<b>", "ä"])
def test_names_are_plain_words(store: TokenStore, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^token name .*alice or ci-2"):
        store.create(name)
    assert store.all() == ()


def test_a_name_is_used_once(store: TokenStore) -> None:
    store.create("alice")
    with pytest.raises(ConfigurationError, match="named alice already"):
        store.create("alice")


def test_a_read_only_folder_is_reported(store: TokenStore, tmp_path: Path) -> None:
    token = store.create("alice")
    with read_only(tmp_path):
        assert name_of(store, token) == "alice"
        for change in (lambda: store.create("bob"), lambda: store.revoke("alice")):
            with pytest.raises(ConfigurationError, match=r"tokens\.json: cannot be written: Permission denied.*--home"):
                change()
        with pytest.raises(ConfigurationError, match="cannot be written: Permission denied"):
            TokenStore(tmp_path / "deeper").create("alice")
    assert [row.name for row in store.all()] == ["alice"]


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK, errno.EMFILE, errno.ENOSPC])
def test_a_disk_error_is_not_reported_as_a_wrong_folder(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for place, what in (("fcntl.flock", "written"), ("os.open", "read")):
        with monkeypatch.context() as patch:
            patch.setattr(place, failing(number))
            with pytest.raises(InfrastructureError) as raised:
                store.create("alice")
        assert isinstance(raised.value, StorageFullError) == (number == errno.ENOSPC)
        message = str(raised.value)
        assert FILE in message and what in message and os.strerror(number) in message
    assert store.all() == ()


def test_a_read_only_file_system_is_reported_as_a_wrong_folder(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", failing(errno.EROFS))
    with pytest.raises(ConfigurationError, match=r"Read-only file system.*--home"):
        store.create("alice")


def test_every_digest_is_compared_in_constant_time(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [store.create(name) for name in ("alice", "bob", "carol")]
    compared: list[tuple[str, str]] = []

    class Watched:
        @staticmethod
        def compare_digest(one: str, other: str) -> bool:
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(tokens, "hmac", Watched)
    everything = [row.digest for row in store.all()]
    for token in (*given, "yatt_unknown", ""):
        compared.clear()
        name_of(store, token)
        assert [other for _, other in compared][1:] == everything
        assert {one for one, _ in compared} == {digest_of(token)}


def test_the_command_line_creates_lists_and_revokes_tokens(yatt: Yatt) -> None:
    made = yatt("token", "create", "alice", "-o", "json").document
    assert made["name"] == "alice" and made["token"].startswith("yatt_")
    listed = yatt("token", "list", "-o", "json")
    assert [row["name"] for row in listed.document["tokens"]] == ["alice"]
    assert made["token"] not in listed.out and "digest" not in listed.out
    refused = yatt("token", "create", "Alice")
    assert refused.code == 2 and "token name 'Alice': " in refused.err
    assert yatt("token", "revoke", "alice", "-o", "json").document == {"name": "alice", "revoked": True}
    assert yatt("token", "list", "-o", "json").document == {"tokens": []}
