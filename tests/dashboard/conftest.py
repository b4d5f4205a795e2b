"""The dashboard over a home folder with two runs as drivers leave them, asked as a browser on this machine asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flows.home import Home
from ops.dashboard.app import create_app
from ops.dashboard.context import Context
from tests.ops.seeding import seed_run

ORIGIN = "http://127.0.0.1:8686"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """toy-1 is stopped; toy-2 has a driver, this process."""
    place = Home(tmp_path / "runs")
    seed_run(place)
    seed_run(place, ends=False)
    return place


@pytest.fixture
def client(home: Home) -> Iterator[TestClient]:
    with TestClient(create_app(home), base_url=ORIGIN) as client:
        yield client


@pytest.fixture
def served(client: TestClient) -> Context:
    context: Context = client.app.state.context  # type: ignore[attr-defined]
    return context


@pytest.fixture
def token(served: Context) -> str:
    return served.tokens.create("alice")


@pytest.fixture
def alice(token: str) -> dict[str, str]:
    """The header that makes a request hers."""
    return {"Authorization": f"Bearer {token}"}
