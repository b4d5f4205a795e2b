"""Roles over HTTP: every route declares what it needs, and each role is refused exactly what it does not include."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from fastapi.testclient import TestClient

from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.roles import ALLOWED, Permission, Role
from ops.web.access import DECLARED
from ops.web.context import Context
from ops.web.security import SAFE_METHODS
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER
from tests.ops.cli.test_branches import seed_checkpoint

LINK = "/approvals/{number}/link"
FREE = {"/health", "/sign-in", "/sign-in/provider", "/sign-in/callback", "/sign-out", "/api/v1/session", LINK}
"""Routes that everyone may use: they show nothing of a run, and open or end only the caller's own session, or they check a
signed link."""
NEEDS = {"promote": Permission.APPROVE, "archive": Permission.ADMINISTER, "delete": Permission.ADMINISTER}
"""The routes that need more than to operate, by the end of their paths."""


def routes(app: FastAPI) -> list[RouteContext]:
    """Returns all routes, those of included routers too, each as it is served."""
    every = list(iter_route_contexts(app.routes))
    found = [route for route in every if isinstance(route.original_route, APIRoute)]
    others = {route.path for route in every if route not in found}
    assert others == {"/api/v1/openapi.json", "/static"}
    return found


def declared(dependant: Dependant) -> set[Permission]:
    below = set().union(*map(declared, dependant.dependencies)) if dependant.dependencies else set()
    return below | ({DECLARED[dependant.call]} if dependant.call in DECLARED else set())


def needed(route: RouteContext) -> Permission | None:
    """Returns the most that a route declares."""
    found = declared(route.dependant)
    return max(found, key=list(Permission).index) if found else None


@pytest.fixture
def strict(home: Home) -> Iterator[TestClient]:
    """Yields a dashboard whose reading needs sign-in."""
    with TestClient(create_app(home, require_sign_in=True), base_url=ORIGIN) as client:
        yield client


def served_by(client: TestClient) -> Context:
    context: Context = client.app.state.context  # type: ignore[attr-defined]
    return context


def test_every_route_declares_what_it_needs(client: TestClient) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    for route in routes(app):
        if route.path in FREE:
            continue
        changes = bool((route.methods or set()) - SAFE_METHODS)
        least = NEEDS.get(route.path.rsplit("/", 1)[1], Permission.OPERATE) if changes else Permission.READ
        found = needed(route)
        assert found is not None, f"{route.path} declares no permission"
        assert list(Permission).index(found) >= list(Permission).index(least), (route.path, found)


@pytest.mark.parametrize("role", Role)
def test_each_role_is_refused_exactly_what_it_does_not_include(strict: TestClient, role: Role) -> None:
    headers = {"Authorization": f"Bearer {served_by(strict).tokens.create('someone', role)}"}
    app = strict.app
    assert isinstance(app, FastAPI)
    tried = 0
    for route in routes(app):
        permission = needed(route)
        if permission is None:
            continue
        # No run has this id, so that what is allowed changes nothing.
        names = dict.fromkeys(("iteration", "before", "after", "number"), "1") | {"run_id": "none-1", "id": "none-1"}
        path = route.path.format_map(Names(names))
        for method in (route.methods or set()) - {"HEAD"}:
            answer = strict.request(method, path, headers=headers, json={})
            allowed = permission in ALLOWED[role]
            assert (answer.status_code == 403) != allowed, (method, path, answer.status_code)
            assert answer.status_code != 401
            tried += 1
            if not allowed:
                assert f"someone has the role {role}; this needs the role" in answer.text
    assert tried > 50


class Names(dict[str, str]):
    """Path parameters; unknown ones get a name that nothing has."""

    def __missing__(self, name: str) -> str:
        return "none-1"


def test_reading_needs_no_sign_in_unless_it_is_required(reader: TestClient) -> None:
    for path in ("/", "/api/v1/runs", "/runs/toy-1", "/metrics"):
        assert reader.get(path).status_code == 200


def test_where_sign_in_is_required_nothing_of_a_run_is_shown_without_it(strict: TestClient) -> None:
    for route in routes(strict.app):  # type: ignore[arg-type]
        if "GET" in (route.methods or ()) and route.path not in FREE:
            path = route.path.format_map(Names({"run_id": "toy-1", "iteration": "1", "before": "1", "after": "1"}))
            answer = strict.get(path, follow_redirects=False)
            assert answer.status_code == 401 and "toy" not in answer.text.replace(path, ""), path
    for path in ("/health", "/sign-in", "/api/v1/session"):
        assert strict.get(path).status_code == 200
    sent = strict.get("/runs/toy-1/logs?level=error", headers=BROWSER, follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=%2Fruns%2Ftoy-1%2Flogs%3Flevel%3Derror")
    here = {"HX-Request": "true", "HX-Current-URL": f"{ORIGIN}/runs/toy-1"}
    part = strict.get("/runs/toy-1", headers=BROWSER | here)
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in?next=%2Fruns%2Ftoy-1")


def test_a_session_reads_where_sign_in_is_required(strict: TestClient) -> None:
    token = served_by(strict).tokens.create("vera", Role.VIEWER)
    strict.post("/sign-in", data={"token": token}, headers=BROWSER | {"Origin": ORIGIN})
    page = strict.get("/runs/toy-2", headers=BROWSER)
    assert page.status_code == 200 and "Signed in as <b>vera</b>, viewer" in page.text
    assert 'action="/runs/toy-2/stop"' not in page.text and "allows reading only" in page.text
    refused = strict.post("/runs/toy-2/stop", headers=BROWSER | {"Origin": ORIGIN})
    assert refused.status_code == 403 and "needs the role operator" in refused.text


@pytest.mark.parametrize(("role", "shown"), [(Role.OPERATOR, False), (Role.APPROVER, True)])
def test_a_page_offers_only_what_the_role_includes(client: TestClient, home: Home, role: Role, shown: bool) -> None:
    seed_checkpoint(home, "toy-1", 1)
    token = served_by(client).tokens.create("someone", role)
    client.post("/sign-in", data={"token": token}, headers=BROWSER | {"Origin": ORIGIN})
    page = client.get("/runs/toy-1/checkpoints", headers=BROWSER).text
    assert ('action="/runs/toy-1/promote"' in page) == shown and 'action="/runs/toy-1/verify"' in page


def test_a_change_of_role_reaches_open_sessions(client: TestClient) -> None:
    served = served_by(client)
    stop = "/api/v1/runs/toy-2/stop"
    users = served.tokens.users
    users.add("alice", Role.OPERATOR)
    client.post("/api/v1/session", json={"token": served.tokens.create("a1", Role.ADMIN, user="alice")})
    assert client.get("/api/v1/session").json() == {"name": "alice", "role": "operator"}
    assert client.post(stop, json={}, headers={"Origin": ORIGIN}).json()["by"] == "alice"
    users.set_role("alice", Role.VIEWER)
    assert client.post(stop, json={}, headers={"Origin": ORIGIN}).status_code == 403
    users.remove("alice")
    assert client.post(stop, json={}, headers={"Origin": ORIGIN}).status_code == 401
