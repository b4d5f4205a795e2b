"""Requests that a run can do without: tried once, left out while the server is away, and sent again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from httpx import ConnectError, HTTPStatusError, ReadTimeout, Request, Response
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings

from flows.prefect_io import optional_client
from flows.prefect_io.optional_client import OptionalClient

SERVER = "http://me:hunter2@prefect.test:4200/api"


@pytest.fixture
def asked() -> Iterator[tuple[OptionalClient, list[str]]]:
    said = list[str]()
    with (
        temporary_settings({PREFECT_API_URL: SERVER}),
        OptionalClient.open(said.append, said.append) as client,
    ):
        yield client, said


def away(_: object) -> NoReturn:
    raise ConnectError(f"no answer from {SERVER}")


def test_requests_are_left_out_while_the_server_is_away(
    asked: tuple[OptionalClient, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, said = asked
    assert client.ask(lambda _: 1) == 1 and said == []
    assert client.ask(away) is None
    assert len(said) == 1 and "prefect.test" in said[0] and "hunter2" not in said[0]
    assert client.ask(lambda _: 1) is None, "it has only just failed"
    monkeypatch.setattr(optional_client, "QUIET_SECONDS", 0.0)
    client._again_at = 0.0
    assert client.ask(away) is None and len(said) == 1, "an outage is reported once"
    assert client.ask(lambda _: 2) == 2 and len(said) == 2, "and so is its end"
    assert client.ask(lambda _: 3) == 3 and len(said) == 2


def overloaded(_: object) -> NoReturn:
    request = Request("GET", f"{SERVER}/flow_runs")
    response = Response(503, request=request)
    text = "Server error\nFor more information check: https://developer.mozilla.org"
    raise HTTPStatusError(text, request=request, response=response)


def test_one_answer_of_an_overloaded_server_is_not_reported_and_a_lasting_one_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optional_client, "QUIET_SECONDS", -1.0)
    warned = list[str]()
    said = list[str]()
    settled = list[str]()
    with (
        temporary_settings({PREFECT_API_URL: SERVER}),
        OptionalClient.open(warned.append, said.append, settled.append) as client,
    ):
        assert client.ask(overloaded) is None
        assert client.ask(lambda _: 1) == 1
        assert (warned, said, settled) == ([], [], []), "it was over at once"
        for _ in range(3):
            assert client.ask(overloaded) is None
        (line,) = warned
        assert line.endswith("prefect.test:4200/api: it answered 503 Service Unavailable") and "\n" not in line
        assert client.ask(lambda _: 2) == 2
        assert (settled, len(said)) == ([line], 1)


def test_a_request_is_not_repeated(asked: tuple[OptionalClient, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = asked
    tries = list[Any]()

    def send(*arguments: Any, **_: Any) -> NoReturn:
        tries.append(get_current_settings().client.max_retries)
        raise ReadTimeout("too slow")

    monkeypatch.setattr("httpx.Client.send", send)
    assert client.ask(lambda real: real.read_flow_runs(limit=1)) is None
    assert tries == [0]
    assert PREFECT_CLIENT_MAX_RETRIES.value() != 0, "other requests of the process are repeated as before"


@pytest.mark.parametrize("body", ["<html>Log in</html>" * 100, "[{}]", "null"])
def test_an_answer_that_is_not_prefects_counts_as_none(
    asked: tuple[OptionalClient, list[str]], monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    client, said = asked

    def send(_: object, request: Request, **__: Any) -> Response:
        return Response(200, text=body, request=request)

    monkeypatch.setattr("httpx.Client.send", send)
    assert client.ask(lambda real: real.read_flow_runs(limit=1)) is None
    assert len(said) == 1 and "prefect.test" in said[0] and len(said[0]) < 200


def test_an_error_of_the_caller_is_not_hidden(asked: tuple[OptionalClient, list[str]]) -> None:
    client, said = asked
    with pytest.raises(ZeroDivisionError):
        client.ask(lambda _: 1 / 0)
    assert said == []
