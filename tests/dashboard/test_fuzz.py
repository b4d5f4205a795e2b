"""The promises of the OpenAPI document hold for arbitrary requests: statuses, media types and schemas of responses.

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

EXAMPLES_SMOKE, EXAMPLES = 15, 400
ENDLESS, STARTING = "/live", ("/resume", "/retry")
"""Routes with restrictions: a live stream never ends; a start of a process is requested only while a driver runs."""
RUNS = ("toy-1", "toy-2", "none", "..", "toy-1%", "\u202e")


class Fuzzed:
    """A client of a seeded dashboard, and its document."""

    def __init__(self, seeded: Home, folder: Path) -> None:
        home = Home(Path(shutil.copytree(seeded.folder, folder / "runs")))
        seed_checkpoint(home, "toy-1", 1)
        app = create_app(home)
        token = app.state.context.tokens.create("fuzz", Role.ADMIN)
        self.client = TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)
        self.headers = {"Authorization": f"Bearer {token}"}
        self.document = self.client.get("/api/v1/openapi.json").json()
        self.operations = [
            (method, path, operation)
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
            if not path.endswith(ENDLESS)
        ]

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
    path, query = template, {}
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
    schema = body["content"]["application/json"]["schema"]
    return draw(
        values(fuzzed, schema) if draw(st.booleans()) else st.dictionaries(st.text(max_size=5), anything(), max_size=3)
    )


def check(fuzzed: Fuzzed, data: st.DataObject, methods: Container[str]) -> None:
    method, path, query, operation = data.draw(requests(fuzzed, methods))
    given_body = data.draw(bodies(fuzzed, operation))
    content = None if given_body is None else json.dumps(given_body).encode()
    asked = {name: value for name, value in query.items() if value is not None}
    headers = fuzzed.headers | {"Content-Type": "application/json"}
    answer = fuzzed.client.request(method.upper(), path, params=asked, content=content, headers=headers)
    where = f"{method} {path} {asked} {content!r}: {answer.status_code} {answer.text[:300]}"
    if answer.status_code == 404 and answer.json()["detail"] == "Not Found":
        return  # The drawn path matched no route.
    promised = operation["responses"].get(str(answer.status_code))
    assert promised is not None, f"not promised: {where}"
    if "content" not in promised:
        return
    media_type = answer.headers["content-type"].partition(";")[0]
    assert media_type in promised["content"], where
    schema = promised["content"][media_type].get("schema")
    if schema and media_type.endswith("json"):
        document = {**schema, "components": fuzzed.document["components"]}
        jsonschema.validate(answer.json(), document)


@given(data=st.data())
@settings(max_examples=EXAMPLES_SMOKE, suppress_health_check=list(HealthCheck), derandomize=True)
def test_some_reading_requests_are_answered_as_promised(fuzzed: Fuzzed, data: st.DataObject) -> None:
    check(fuzzed, data, ("get",))


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
