"""Every answer of every route is in the OpenAPI document: each refusal is provoked on each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from db.core.errors import LedgerUnavailable
from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.roles import Role
from ops.web.security import BODY_BYTES
from tests.dashboard.conftest import ORIGIN

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE")
JSON = {"Content-Type": "application/json"}


class Operation:
    """An operation of the document, and requests to it."""

    def __init__(self, method: str, path: str, described: dict[str, Any]) -> None:
        self.method = method
        self.path = path
        self.described = described
        self.has_body = "requestBody" in described
        self.changes = method != "GET"

    def address(self, run: str = "toy-1") -> str:
        return self.path.format(run_id=run, iteration=1, before=1, after=2, number=1, pool="main")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations(document: dict[str, Any]) -> list[Operation]:
    return [
        Operation(method.upper(), path, described)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
    ]


@pytest.fixture(scope="session")
def document(reader: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = reader.get("/api/v1/openapi.json").json()
    return found


def provocations(one: Operation) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns requests that are refused, by the reason: the address and the request's other parts."""
    run = "{run_id}" in one.path
    changing: dict[str, Any] = {"headers": {"Authorization": "Bearer yatt_wrong", **JSON}, "content": b"{}"}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "wrong host": (one.address(), {"headers": {"Host": "evil.example"}}),
        "too large": (one.address(), {"headers": {"Content-Length": str(BODY_BYTES + 1)}, "content": b"x"}),
    }
    if one.changes:
        found["another site"] = (one.address(), {"headers": {"Origin": "http://evil.example"}})
        found["no token"] = (one.address(), {"content": b"{}", "headers": JSON})
        found["wrong token"] = (one.address(), changing)
    if one.has_body:
        found["broken body"] = (one.address(), {"content": b'{"a": "\xff"}', "headers": JSON})
        found["wrong type"] = (one.address(), {"content": b"a=b", "headers": {"Content-Type": "text/plain"}})
        found["deep body"] = (one.address(), {"content": b"[" * 10_000, "headers": JSON})
        found["wrong body"] = (one.address(), {"content": b'{"no such key": 1}', "headers": JSON})
    if run:
        found["unknown run"] = (one.address("none"), {"content": b"{}", "headers": JSON} if one.changes else {})
        found["invalid run"] = (one.address("%00"), {})
    for parameter in one.described.get("parameters", []):
        if parameter["in"] == "query":
            found[f"invalid {parameter['name']}"] = (f"{one.address()}?{parameter['name']}=%00", {})
        elif parameter["name"] != "run_id" and parameter["in"] == "path":
            found[f"invalid {parameter['name']}"] = (one.path.replace(f"{{{parameter['name']}}}", "x"), {})
    return found


def test_every_refusal_is_in_the_document(reader: TestClient, document: dict[str, Any]) -> None:
    seen: dict[str, set[int]] = {}
    for one in operations(document):
        for reason, (address, request) in provocations(one).items():
            answer = reader.request(one.method, address, **request)
            if answer.status_code >= 400:
                promised = one.described["responses"].get(str(answer.status_code))
                assert promised is not None, f"{one}, {reason}: {answer.status_code} is not in the document"
                assert answer.headers["content-type"] in promised["content"], f"{one}, {reason}"
                seen.setdefault(str(one), set()).add(answer.status_code)
    for one in operations(document):
        expected = {413, 421} | ({403} if one.changes else set()) | ({400} if one.has_body else set())
        assert expected <= seen[str(one)], f"{one}: {seen[str(one)]}"
    assert set.union(*seen.values()) == {400, 401, 403, 404, 413, 421, 422}


def test_an_undocumented_method_is_refused_and_the_documented_ones_are_named(
    reader: TestClient, document: dict[str, Any]
) -> None:
    for path, methods in document["paths"].items():
        address = Operation("GET", path, {}).address()
        named = {method.upper() for method in methods}
        for method in set(METHODS) - named:
            answer = reader.request(method, address)
            assert answer.status_code == 405, f"{method} {path}"
            assert {name.strip() for name in answer.headers["allow"].split(",")} == named, f"{method} {path}"
    for page in ("/sign-in", "/runs/toy-1/note", "/"):
        assert "PATCH" not in reader.patch(page).headers["allow"]
    assert set(reader.patch("/sign-in").headers["allow"].split(", ")) == {"GET", "POST"}


def test_failures_of_the_service_are_in_the_document(
    home: Home, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: Exception) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise error

        return call

    for error, status in ((LedgerUnavailable("gone"), 503), (RuntimeError("a defect"), 500)):
        app = create_app(home)
        token = app.state.context.tokens.create(f"failing-{status}", Role.ADMIN)
        monkeypatch.setattr(type(app.state.context.ledger._database), "read", broken(error))
        monkeypatch.setattr(type(app.state.context.ledger._database), "write", broken(error))
        with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as client:
            for one in operations(document):
                answer = client.request(
                    one.method, one.address(), content=b"{}", headers={"Authorization": f"Bearer {token}", **JSON}
                )
                if answer.status_code >= 400:
                    assert str(answer.status_code) in one.described["responses"], f"{one}: {answer.status_code}"
            assert client.get("/api/v1/runs").status_code == status
        monkeypatch.undo()
