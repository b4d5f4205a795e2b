"""The dashboard over a home folder with two runs as drivers leave them, requested as by a browser on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text

from db.ledger import Ledger
from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.roles import Role
from ops.preflight.apart import Made, RunRequest, _made
from ops.preflight.asked import answer_to
from ops.web.context import Context
from tests.ops.seeding import seed_run

ORIGIN = "http://127.0.0.1:8686"
Ask = Callable[..., Any]
FAR_AWAY = 4_102_444_800_000
"""A time later than any test."""


def seed_home(folder: Path) -> Home:
    """Seeds two runs: toy-1 is stopped; toy-2 is driven by this process."""
    home = Home(folder)
    seed_run(home)
    seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
        connection.execute(text("UPDATE lease SET expires_at = :at WHERE run = 'toy-2'"), {"at": FAR_AWAY})
    return home


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Seeds the folder once, because copying it for each test is faster than seeding it again."""
    return seed_home(tmp_path_factory.mktemp("dashboard") / "runs")


@pytest.fixture
def home(seeded: Home, tmp_path: Path) -> Home:
    return Home(Path(shutil.copytree(seeded.folder, tmp_path / "runs")))


@pytest.fixture(scope="session")
def reader(seeded: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Yields one client for all tests that change nothing."""
    folder = tmp_path_factory.mktemp("reader") / "runs"
    with TestClient(create_app(Home(Path(shutil.copytree(seeded.folder, folder)))), base_url=ORIGIN) as client:
        yield client


_lent: list[FastAPI] = []
"""The application that tests lend each other, while none of them has it."""
_first: list[FastAPI] = []
"""The same application, from its first use on."""


@contextmanager
def application(home: Home) -> Iterator[FastAPI]:
    """Yields the application for a home: one after another, tests of a process have the same one, with a context of their own.

    FastAPI takes a tenth of a second to make of a hundred routes what it needs at the first request.
    """
    own = create_app(home)
    if not _first:
        _first.append(own)
        _lent.append(own)
    app = _lent.pop() if _lent else own
    app.state.context = own.state.context
    try:
        yield app
    finally:
        own.state.context.ledger.close()
        if app in _first:
            _lent.append(app)


@pytest.fixture
def client(home: Home) -> Iterator[TestClient]:
    with application(home) as app, TestClient(app, base_url=ORIGIN) as client:
        yield client


@pytest.fixture
def served(client: TestClient) -> Context:
    context: Context = client.app.state.context  # type: ignore[attr-defined]
    return context


@pytest.fixture
def token(served: Context) -> str:
    return served.tokens.create("alice", Role.ADMIN)


@pytest.fixture
def alice(token: str) -> dict[str, str]:
    """Returns the header that authenticates a request as alice."""
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def ask(client: TestClient, alice: dict[str, str]) -> Ask:
    """Posts as alice; returns the response."""

    def post(path: str, **body: Any) -> Any:
        return client.post(f"/api/v1/runs/{path}", json=body, headers=alice)

    return post


def made_in_this_process(home: Home, asked: RunRequest) -> Made:
    """Answers a request as `made_apart` does, through the same JSON, but without a process of its own."""
    given = json.loads(json.dumps(asdict(asked)))
    request = RunRequest(**given | {"overrides": tuple(given["overrides"])})
    return _made(json.loads(json.dumps(answer_to(home, request, lambda _: None))))


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has requests answered in this process: starting another takes seconds, and a few tests try it."""
    monkeypatch.setattr("ops.dashboard.starting.made_apart", made_in_this_process)
    monkeypatch.setattr("ops.dashboard.changing.made_apart", made_in_this_process)
