"""Access: nothing is changed without a named token, from another site, or under another host's name."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.roles import Person, Role
from ops.web.context import Context
from ops.web.security import BODY_BYTES, POLICY, SAFE_METHODS
from ops.web.sessions import Sessions
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.test_forms import ACTIONS

BODIES: dict[str, dict[str, Any]] = {
    "/retry": {"iteration": 3, "phase": "collect"},
    "/rollback": {"to": 1},
    "/promote": {"to": "candidate", "why": "best"},
    "/approvals/{number}": {"decision": "approve", "why": "good"},
}
"""Bodies that routes need, so that a refusal is not due to a wrong body."""
FREE = {"/api/v1/session"}


def changing(client: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns every route that changes something, from the OpenAPI document, so that new routes are tested too."""
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    found = []
    for path, operations in paths.items():
        for method in operations.keys() - {"get", "head"}:
            if path not in FREE:
                filled = path.format(run_id="toy-2", iteration=1, number=1, pool="main")
                body = next((body for end, body in BODIES.items() if path.endswith(end)), {})
                found.append((method, filled, body))
    return found


def test_only_the_known_forms_are_missing_from_the_document(client: TestClient) -> None:
    """Every route that changes something is in the document, where `changing` finds it, or a form of test_forms.py."""
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    hidden = {
        (method, route.path)
        for route in iter_route_contexts(client.app.routes)  # type: ignore[attr-defined]
        for method in (route.methods or set()) - SAFE_METHODS
        if method.lower() not in paths.get(route.path, {})
    }
    forms = {f"/runs/{{run_id}}/{action}" for action in ACTIONS}
    others = {"/new", "/sign-in", "/sign-out", "/approvals/{number}", "/approvals/{number}/link"}
    assert hidden == {("POST", path) for path in forms | others}


def events(served: Context, run: str = "toy-2") -> int:
    return served.ledger.events.head(run).seq


def test_nothing_is_changed_without_a_token(client: TestClient, served: Context) -> None:
    routes = changing(client)
    assert {path.rsplit("/", 1)[1] for _, path, _ in routes} >= {
        "stop",
        "resume",
        "retry",
        "rollback",
        "promote",
        "verify",
    }
    before = events(served)
    for headers, lacking in (
        ({}, "`yatt token create NAME`"),
        ({"Authorization": "Bearer yatt_wrong"}, "`yatt token list`"),
        ({"Authorization": "Basic abc"}, "`yatt token create NAME`"),
        ({"Cookie": "yatt_session_8686=wrong", "Origin": ORIGIN}, "sign in again"),
    ):
        for method, path, body in routes:
            answer = client.request(method, path, json=body, headers=headers)
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert lacking in answer.json()["detail"] and "wrong" not in answer.text
    assert events(served) == before
    assert served.ledger.runs.desired_state("toy-2") == "run"


def test_another_sites_page_changes_nothing_with_a_token(
    client: TestClient, served: Context, alice: dict[str, str]
) -> None:
    origins = ("http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8686")
    told = [{"Origin": origin} for origin in origins]
    told += [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
    for headers in told:
        for method, path, body in changing(client):
            assert client.request(method, path, json=body, headers=alice | headers).status_code == 403, headers
        assert client.post("/api/v1/session", json={"token": "x"}, headers=headers).status_code == 403
    assert served.ledger.runs.desired_state("toy-2") == "run"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "evil.example:8686",
        "",
        "[::1",
        "127.0.0.1:x",
    ],
)
def test_a_rebound_host_name_is_refused(reader: TestClient, host: str) -> None:
    for path in ("/api/v1/runs", "/metrics", "/health", "/nowhere"):
        assert reader.get(path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8686", "127.0.0.1:1", "[::1]:8686", "LOCALHOST"])
def test_loopback_has_several_accepted_names(reader: TestClient, host: str) -> None:
    assert reader.get("/health", headers={"Host": host}).status_code == 200


def test_a_session_is_valid_for_our_own_pages_only(client: TestClient, served: Context, token: str) -> None:
    opened = client.post("/api/v1/session", json={"token": token}, headers={"Origin": ORIGIN})
    assert opened.json() == {"name": "alice", "role": "admin"}
    flags = opened.headers["set-cookie"]
    assert "HttpOnly" in flags and "SameSite=strict" in flags and "Path=/" in flags
    assert token not in flags
    assert client.get("/api/v1/session").json() == {"name": "alice", "role": "admin"}
    stop = "/api/v1/runs/toy-2/stop"
    assert client.post(stop, json={}).status_code == 403  # A browser would have sent the origin.
    assert client.post(stop, json={}, headers={"Origin": ORIGIN}).status_code == 200
    assert client.post(stop, json={}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    client.delete("/api/v1/session", headers={"Origin": ORIGIN})
    assert client.get("/api/v1/session").json() == {"name": None, "role": None}


def test_dashboards_on_two_ports_keep_their_own_sessions(client: TestClient, token: str) -> None:
    """Browsers share cookies between the ports of a host."""
    opened = {}
    for port in (8686, 8687):
        there = {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}"}
        answer = client.post("/api/v1/session", json={"token": token}, headers=there)
        opened[port] = answer.headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    assert [cookie.partition("=")[0] for cookie in opened.values()] == ["yatt_session_8686", "yatt_session_8687"]
    for port, name in ((8686, "alice"), (8687, None)):
        answer = client.get("/api/v1/session", headers={"Host": f"127.0.0.1:{port}", "Cookie": opened[8686]})
        assert answer.json()["name"] == name


def test_a_session_ends_with_its_token_or_after_its_lifetime(
    client: TestClient, served: Context, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/api/v1/session", json={"token": token})
    served.tokens.revoke("alice")
    served.tokens.create("alice")  # Another token of the same name.
    assert client.get("/api/v1/session").json() == {"name": None, "role": None}
    assert client.post("/api/v1/runs/toy-2/stop", json={}, headers={"Origin": ORIGIN}).status_code == 401
    sessions = Sessions(served.tokens)
    value, _ = sessions.begin(served.tokens.create("bob")) or ("", "")
    assert sessions.person_of(value) == Person("bob", Role.OPERATOR)
    monkeypatch.setattr("ops.web.sessions.time.monotonic", lambda: float("inf"))
    assert sessions.person_of(value) is None


def test_a_wrong_token_opens_no_session_and_is_not_repeated(client: TestClient) -> None:
    for given in ({"token": "yatt_secret-guess"}, {"token": "yatt_secret-guess" * 100}, {"tokn": "yatt_secret-guess"}):
        answer = client.post("/api/v1/session", json=given)
        assert answer.status_code in (401, 422)
        assert "secret-guess" not in answer.text and "set-cookie" not in answer.headers


def test_every_response_has_the_security_headers(reader: TestClient) -> None:
    for path in ("/health", "/api/v1/runs", "/api/v1/runs/none", "/api/v1/runs?limit=0", "/nowhere", "/metrics"):
        headers = reader.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
    assert "unsafe" not in POLICY and "http" not in POLICY
    assert reader.get("/api/v1/runs", headers={"Host": "evil.example"}).headers["content-security-policy"] == POLICY


def test_an_unexpected_error_reveals_nothing_and_has_the_headers(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr("ops.queries.run_list.run_list", fail)
    with TestClient(create_app(home), base_url=ORIGIN, raise_server_exceptions=False) as client:
        answer = client.get("/api/v1/runs")
    assert answer.status_code == 500 and "RuntimeError" in answer.json()["detail"]
    assert answer.headers["content-security-policy"] == POLICY
    assert "hunter2" not in answer.text and "hunter2" in caplog.text


def test_a_body_is_limited_with_and_without_a_declared_length(client: TestClient, alice: dict[str, str]) -> None:
    stop = "/api/v1/runs/toy-2/stop"
    assert client.post(stop, json={"reason": "x" * BODY_BYTES}, headers=alice).status_code == 413
    chunks = (b" " * 1024 for _ in range(BODY_BYTES // 1024 + 1))
    assert client.post(stop, content=chunks, headers=alice).status_code == 413
