"""Bodies of requests are strict: a value of another JSON type than the schema's is refused, in every body of the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ops.dashboard.actions import Rollback, StopRequest
from ops.dashboard.pages.acting import ResumeForm, RetryForm, StopForm
from ops.web.context import Context
from tests.dashboard.test_permissions import Names

OTHERS: dict[str, list[Any]] = {
    "integer": [False, True, "1", 1.5, None, [1], {}],
    "number": [False, "1", [1], {}],
    "boolean": [0, 1, "true", "on", [True], {}],
    "string": [0, False, ["x"], {}],
    "array": [0, False, "x", {}],
}
"""Values of other types."""


def fields(app: FastAPI) -> Iterator[tuple[str, str, str, str, bool]]:
    """Yields method, path, key, type and whether it may be null, of each value in a JSON body."""
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is None:
                continue
            schema = document["components"]["schemas"][body["schema"]["$ref"].rsplit("/", 1)[1]]
            for key, value in schema["properties"].items():
                kinds = [each for each in [value, *value.get("anyOf", ())] if "type" in each]
                (kind,) = {each["type"] for each in kinds} - {"null"}
                yield method, path, key, kind, any(each["type"] == "null" for each in kinds)


def test_values_of_other_types_are_refused(client: TestClient, served: Context, alice: dict[str, str]) -> None:
    before = served.ledger.events.head("toy-1").seq
    app = client.app
    assert isinstance(app, FastAPI)
    tried = 0
    for method, path, key, kind, may_be_null in fields(app):
        place = path.format_map(Names({"run_id": "toy-1", "number": "1", "iteration": "1"}))
        for value in OTHERS[kind]:
            if value is None and may_be_null:
                continue
            answer = client.request(method, place, json={key: value}, headers=alice)
            assert answer.status_code == 422, (method, path, key, value, answer.text)
            assert any(key in each["where"] for each in answer.json()["errors"]), (
                method,
                path,
                key,
                value,
                answer.text,
            )
            tried += 1
    assert tried > 100
    assert served.ledger.events.head("toy-1").seq == before


@pytest.mark.parametrize("to", ["false", "1.5", "", "-1", "x"])
def test_a_form_takes_texts_and_refuses_what_is_no_number(client: TestClient, to: str) -> None:
    given = {"iteration": to, "phase": "learn"}
    with pytest.raises(ValueError, match="iteration"):
        RetryForm.model_validate(given)


def test_a_form_that_is_filled_in_means_what_the_body_means() -> None:
    assert StopForm.model_validate({"within_seconds": "1.5", "reason": ""}) == StopForm(within_seconds=1.5)
    assert StopForm.model_validate({"within_seconds": ""}).within_seconds is None
    assert ResumeForm.model_validate({"accept_drift": "true"}).accept_drift is True
    assert RetryForm.model_validate({"iteration": "3", "phase": "learn"}).iteration == 3
    with pytest.raises(ValueError, match="to"):
        Rollback.model_validate({"to": False})
    with pytest.raises(ValueError, match="within_seconds"):
        StopRequest.model_validate({"within_seconds": True})
