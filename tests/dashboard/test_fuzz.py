"""The promises of the OpenAPI document hold for arbitrary requests of each role: statuses, media types and schemas.

No answer is a failure of the server, and no body is accepted that its schema refuses.

Requests are drawn from the document itself, so that new routes are tested too; half of the values are within the
document's limits, the others are arbitrary.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.roles import Role
from tests.dashboard.conftest import ORIGIN
from tests.ops.cli.test_branches import seed_checkpoint

EXAMPLES_SMOKE = 15
EXAMPLES = 400
ENDLESS = "/live"
STARTING = ("/resume", "/retry")
"""Routes with restrictions: a live stream never ends; a start of a process is requested only while a driver runs."""
RUNS = ("toy-1", "toy-2", "none", "..", "toy-1%", "\u202e")


class Fuzzed:
    """A client of a seeded dashboard, and its document."""

    def __init__(self, seeded: Home, folder: Path) -> None:
        home = Home(Path(shutil.copytree(seeded.folder, folder / "runs")))
        seed_checkpoint(home, "toy-1", 1)
        app = create_app(home)
        self.client = TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)
        tokens = {role: app.state.context.tokens.create(f"fuzz-{role}", role) for role in Role}
        self.headers = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}
        self.document = self.client.get("/api/v1/openapi.json").json()
        self.operations = [
            (method, path, operation)
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
            if not path.endswith(ENDLESS)
        ]

    def accepts(self, schema: dict[str, Any], value: Any) -> bool:
        return bool(jsonschema.Draft202012Validator(self.whole(schema)).is_valid(value))

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Returns a schema with the others that it refers to."""
        return {**schema, "components": self.document["components"]}

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        name = schema.get("$ref")
        return self.resolved(self.document["components"]["schemas"][name.rsplit("/", 1)[1]]) if name else schema


@pytest.fixture(scope="module")
def fuzzed(seeded: Home) -> Iterator[Fuzzed]:
    with tempfile.TemporaryDirectory() as folder:
        yield Fuzzed(seeded, Path(folder))


def anything() -> st.SearchStrategy[Any]:
    numbers = st.integers(-(2**70), 2**70) | st.floats()
    return st.none() | st.booleans() | numbers | st.text(max_size=20)


def values(fuzzed: Fuzzed, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draws values that match a schema, and sometimes values that do not."""
    schema = fuzzed.resolved(schema)
    if "anyOf" in schema:
        return st.one_of(*(values(fuzzed, each) for each in schema["anyOf"]))
    match schema.get("type"):
        case "integer":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**53)) | st.integers(-3, 3)
        case "number":
            return st.floats(schema.get("minimum", 0.0), schema.get("maximum", 1e9))
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(values(fuzzed, schema["items"]), max_size=3)
        case "object":
            return st.fixed_dictionaries(
                {}, optional={name: values(fuzzed, each) for name, each in schema.get("properties", {}).items()}
            )
        case "string":
            known = schema.get("enum", ["", "collect", "info", "reward/mean", "toy", "2.0.1"])
            return st.sampled_from(known) | st.text(max_size=20)
        case _:
            return st.none()


@st.composite
def requests(
    draw: st.DrawFn, fuzzed: Fuzzed, methods: Container[str]
) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Draws a method, a path, a query, and the operation that they are meant for."""
    operations = [each for each in fuzzed.operations if each[0] in methods]
    method, template, operation = draw(st.sampled_from(operations))
    path = template
    query = {}
    for parameter in operation.get("parameters", []):
        strategy = values(fuzzed, parameter["schema"]) if draw(st.booleans()) else anything()
        if parameter["in"] == "path":
            runs = ("toy-2",) if template.endswith(STARTING) else RUNS
            known = st.sampled_from(runs) if parameter["name"] == "run_id" else st.integers(0, 4) | strategy
            # Dots are quoted too, because a client resolves `..` to another route.
            value = quote(str(draw(known)), safe="").replace(".", "%2E")
            path = path.replace(f"{{{parameter['name']}}}", value)
        elif parameter["in"] == "query" and draw(st.booleans()):
            query[parameter["name"]] = draw(strategy)
    return method, path, query, operation


@st.composite
def bodies(draw: st.DrawFn, fuzzed: Fuzzed, operation: dict[str, Any]) -> Any:
    body = operation.get("requestBody")
    if body is None:
        return None
    schema = fuzzed.resolved(body["content"]["application/json"]["schema"])
    fields = {name: values(fuzzed, each) | anything() for name, each in schema.get("properties", {}).items()}
    needed = {name: fields.pop(name) for name in schema.get("required", [])}
    unknown = st.dictionaries(st.text(max_size=5), anything(), max_size=3)
    return draw(values(fuzzed, schema) | st.fixed_dictionaries(needed, optional=fields) | unknown)


def check(fuzzed: Fuzzed, data: st.DataObject, methods: Container[str]) -> None:
    method, path, query, operation = data.draw(requests(fuzzed, methods))
    given_body = data.draw(bodies(fuzzed, operation))
    content = None if given_body is None else json.dumps(given_body).encode()
    asked = {name: value for name, value in query.items() if value is not None}
    role = data.draw(st.sampled_from(Role))
    headers = fuzzed.headers[role] | {"Content-Type": "application/json"}
    answer = fuzzed.client.request(method.upper(), path, params=asked, content=content, headers=headers)
    where = f"{method} {path} {asked} {content!r}: {answer.status_code} {answer.text[:300]}"
    if answer.status_code == 404 and answer.json()["detail"] == "Not Found":
        return  # The drawn path matched no route.
    assert answer.status_code < 500, where
    if content is not None:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert answer.status_code >= 400 or fuzzed.accepts(schema, given_body), f"accepted: {where}"
    promised = operation["responses"].get(str(answer.status_code))
    assert promised is not None, f"not promised: {where}"
    if "content" not in promised:
        return
    media_type = answer.headers["content-type"].partition(";")[0]
    assert media_type in promised["content"], where
    schema = promised["content"][media_type].get("schema")
    if schema and media_type.endswith("json"):
        jsonschema.validate(answer.json(), fuzzed.whole(schema))


@given(data=st.data())
@settings(max_examples=EXAMPLES_SMOKE, suppress_health_check=list(HealthCheck), derandomize=True)
def test_some_reading_requests_are_answered_as_promised(fuzzed: Fuzzed, data: st.DataObject) -> None:
    check(fuzzed, data, ("get",))


def simplest(fuzzed: Fuzzed, schema: dict[str, Any]) -> Any:
    """Returns a value that a schema accepts, of those that requests use."""
    schema = fuzzed.resolved(schema)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        return simplest(fuzzed, schema["anyOf"][0])
    empty = {"integer": schema.get("minimum", 1), "number": 1.0, "boolean": True, "array": [], "object": {}}
    return empty.get(schema.get("type", ""), "x" * max(1, schema.get("minLength", 1)))


def refused_bodies(fuzzed: Fuzzed, schema: dict[str, Any]) -> Iterator[Any]:
    """Yields bodies that a schema refuses: each field once with values of other types, and a field that there is not."""
    schema = fuzzed.resolved(schema)
    fields = schema.get("properties", {})
    needed = {name: simplest(fuzzed, fields[name]) for name in schema.get("required", [])}
    changed = [(name, value) for name in fields for value in (False, True, 1, -1, 1.5, "1", "x", [], [0], {}, None)]
    for name, value in [*changed, ("no_such_field", 1)]:
        if not fuzzed.accepts(schema, body := {**needed, name: value}):
            yield body


def test_every_body_that_the_schema_refuses_is_refused(fuzzed: Fuzzed) -> None:
    """Before anything else is looked at: status 422, whatever there is of what the request is about."""
    headers = fuzzed.headers[Role.ADMIN]
    asked = 0
    for method, template, operation in fuzzed.operations:
        if "requestBody" not in operation:
            continue
        path = template.replace("{run_id}", "toy-2")
        for name in ("iteration", "number", "branch", "revision", "pool"):
            path = path.replace(f"{{{name}}}", "1")
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for body in refused_bodies(fuzzed, schema):
            answer = fuzzed.client.request(method.upper(), path, json=body, headers=headers)
            assert answer.status_code == 422, f"{method} {path} {body}: {answer.status_code} {answer.text[:300]}"
            asked += 1
    assert asked > 200


@given(data=st.data())
@settings(max_examples=EXAMPLES_SMOKE, suppress_health_check=list(HealthCheck), derandomize=True)
def test_some_bodies_are_accepted_only_as_the_schema_says(fuzzed: Fuzzed, data: st.DataObject) -> None:
    check(fuzzed, data, ("post", "put", "delete"))


@pytest.mark.verify
@pytest.mark.timeout(900)
@given(data=st.data())
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_requests_are_answered_as_promised(fuzzed: Fuzzed, data: st.DataObject) -> None:
    check(fuzzed, data, ("get", "post", "delete"))


def test_every_route_is_in_the_document(fuzzed: Fuzzed) -> None:
    assert len(fuzzed.operations) > 20
    jsonschema.Draft202012Validator.check_schema(fuzzed.document["components"]["schemas"]["Problem"])
    for _, path, operation in fuzzed.operations:
        assert "application/problem+json" in operation["responses"]["421"]["content"], path
