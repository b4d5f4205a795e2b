"""Prefect's server and client write only into the run folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import prefect.context
import pytest
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from flows.driver.services import require_prefect
from flows.prefect_io.prefect_server import (
    PASSWORD_VARIABLE,
    PREFECT_VARIABLE,
    SERVER_PASSWORD_VARIABLE,
    named_server,
    server_service,
    shown,
    sqlite_address,
    use_server,
)
from yatt_core.errors import AwayError
from yatt_core.supervisor.runner import free_port

PRINTED = (
    "from prefect.settings import get_current_settings as get; s = get(); "
    "print(s.home, s.profiles_path, s.results.local_storage_path, s.server.memo_store_path, sep='\\n')"
)


def settings_paths(environment: dict[str, str]) -> list[Path]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    output = subprocess.run(
        [sys.executable, "-c", PRINTED], env=kept | environment, check=True, capture_output=True, text=True
    ).stdout
    return [Path(line) for line in output.splitlines()]


def test_server_and_client_write_below_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = dict(server_service(tmp_path, tmp_path / "starts").environment)
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {})
        use_server(tmp_path, "http://127.0.0.1:1")
        client = dict(os.environ)
    for environment in (server, client):
        paths = settings_paths(environment)
        assert len(paths) == 4
        assert [path for path in paths if not path.is_relative_to(tmp_path / "prefect")] == []


@pytest.mark.parametrize(
    ("given", "password", "brought"),
    [
        ({}, None, None),
        ({}, "a:1", "a:1"),
        ({PASSWORD_VARIABLE: "stale"}, "a:1", "a:1"),
        ({SERVER_PASSWORD_VARIABLE: "b:2"}, None, "b:2"),
        ({SERVER_PASSWORD_VARIABLE: "b:2", PASSWORD_VARIABLE: "c:3"}, None, "c:3"),
    ],
)
def test_the_client_gets_the_servers_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], password: str | None, brought: str | None
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    use_server(tmp_path, "http://127.0.0.1:1", password)
    assert os.environ.get(PASSWORD_VARIABLE) == brought


def test_a_server_that_was_started_again_gets_its_new_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(prefect.context, "GLOBAL_SETTINGS_CONTEXT", prefect.context.GLOBAL_SETTINGS_CONTEXT)
    for password in ("a:1", "b:2"):
        use_server(tmp_path, "http://127.0.0.1:1", password)
        sent = get_current_settings().api.auth_string
        assert sent is not None and sent.get_secret_value() == password


CACHES = """
import asyncio, sys
from flows.prefect_io.prefect_serving import CACHE_KIB, keep_caches_small
from prefect.server.database.configurations import AioSqliteConfiguration

async def sizes(address):
    engine = await AioSqliteConfiguration(connection_url=address).engine()
    for _ in range(2):
        async with engine.connect() as connection:
            yield (await connection.exec_driver_sql("PRAGMA cache_size")).scalar()

async def show():
    print([size == -CACHE_KIB async for size in sizes(sys.argv[1])])

keep_caches_small()
asyncio.run(show())
"""


def test_the_server_keeps_few_pages_in_memory(tmp_path: Path) -> None:
    assert "flows.prefect_io.prefect_serving" in server_service(tmp_path, tmp_path / "starts").argv
    environment = os.environ | dict(server_service(tmp_path, tmp_path / "starts").environment)
    command = [sys.executable, "-c", CACHES, sqlite_address(tmp_path)]
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[True, True]"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", None),
        ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200"),
        ("https://me:1@host/api/", "https://me:1@host"),
        ("http://[::1]:4200", "http://[::1]:4200"),
    ],
)
def test_the_environment_names_a_server(monkeypatch: pytest.MonkeyPatch, given: str, address: str | None) -> None:
    monkeypatch.setenv(PREFECT_VARIABLE, given)
    named = named_server()
    assert (named and named.address) == address
    assert named is None or ":1@" not in named.text


@pytest.mark.parametrize("address", ["http://me:1@host/api", "http://me:a@b/1@host/api", "http://host/api"])
def test_an_address_is_shown_without_its_password(address: str) -> None:
    assert shown(address) == "http://host/api"


def test_a_driver_names_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv(PREFECT_VARIABLE, address)
    with temporary_settings({PREFECT_API_URL: address}), pytest.raises(AwayError, match=address) as told:
        require_prefect()
    assert PREFECT_VARIABLE in str(told.value)
