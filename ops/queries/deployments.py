"""The deployments of runs on a Prefect server, with their schedules and next windows.

Consumes the server's address; asks its HTTP API, so that who only looks need not import Prefect. Produces `Deployments`: a
server that does not answer is a reason there, and no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from itertools import count
from typing import Any
from uuid import uuid4

import httpx

from flows.prefect_io.prefect_server import PASSWORD_VARIABLE, SharedServer, shown
from flows.run.home import Home
from ops.presentation.columns import Cell, Column, Columns, MomentCell, RunCell, SeveralCells
from yatt_core.logs import redact

FLOW = "yatt"
"""The name of the flow of windows."""
SECONDS = 3.0
"""Time limit of a request."""
PAGE = 200
WINDOWS = 3
"""Rows of an answer, of which Prefect's server gives no more; and the number of next windows of a deployment."""


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """A deployment.

    run: the run that its windows drive, or whose spec they start new runs from.
    schedules: when windows begin, for people; empty if they are begun by hand.
    longest: maximum length of a window, such as 8h; empty for no limit.
    next: when the next windows begin, in milliseconds since 1970.
    """

    name: str
    run: str
    new_runs: bool
    schedules: tuple[str, ...]
    longest: str
    paused: bool
    next: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Deployments:
    """The deployments of a home.

    trouble: why they are not known; empty if they are.
    """

    deployments: tuple[DeploymentView, ...]
    trouble: str


def deployments(home: Home, server: SharedServer | None) -> Deployments:
    """Returns the deployments of a home's runs, by name.

    server: the Prefect server; None if none is known.
    """
    if server is None:
        return Deployments((), "no Prefect server is known: `yatt up` starts one, and PREFECT_API_URL names another")
    try:
        with httpx.Client(base_url=f"{server.address}/api", auth=_credentials(server), timeout=SECONDS) as client:
            _take_token(client)
            found = [each for each in _of_all_homes(client) if _is_of(each, home)]
            starts = _starts(client, [str(each["id"]) for each in found])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        said = f"{shown(server.address)} does not answer as Prefect's server does: {_reason(error)}"
        return Deployments((), redact(said))
    return Deployments(tuple(_view(each, starts.get(str(each["id"]), ())) for each in found), "")


def _take_token(client: httpx.Client) -> None:
    """Has the client send a token against forged requests, without which Prefect's server may refuse all but GET.

    The token is of a client of its own, since a second one for the same client would replace the first.
    """
    name = str(uuid4())
    answer = client.get("/csrf-token", params={"client": name})
    if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY:  # the server asks for none
        return
    answer.raise_for_status()
    client.headers.update({"Prefect-Csrf-Token": str(answer.json()["token"]), "Prefect-Csrf-Client": name})


def _reason(error: Exception) -> str:
    """Returns why an answer cannot be used, without its text."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP status {error.response.status_code} for {error.request.url.path}"
    return type(error).__name__


def _of_all_homes(client: httpx.Client) -> Iterator[Mapping[str, Any]]:
    """Yields the server's deployments of windows, by name; the server cannot filter by parameters."""
    wanted = {"flows": {"name": {"any_": [FLOW]}}, "limit": PAGE, "sort": "NAME_ASC"}
    for offset in count(0, PAGE):
        page = _asked(client, "/deployments/filter", {**wanted, "offset": offset})
        yield from page
        if len(page) < PAGE:
            return


def _asked(client: httpx.Client, path: str, body: Mapping[str, Any]) -> list[Any]:
    answer = client.post(path, json=body)
    answer.raise_for_status()
    return list(answer.json())


def _credentials(server: SharedServer) -> tuple[str, str] | None:
    """Returns user and password; None if the server has none."""
    user, separator, password = (server.password or os.environ.get(PASSWORD_VARIABLE, "")).partition(":")
    return (user, password) if separator else None


def _is_of(deployment: Mapping[str, Any], home: Home) -> bool:
    return dict(deployment["parameters"]).get("home") == str(home.folder)


def _starts(client: httpx.Client, ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Returns the next starts that the server has planned, by the deployment's id."""
    if not ids:
        return {}
    found = _planned(client, ids, PAGE)
    if sum(map(len, found.values())) == PAGE:  # those of one that begins often may have left no room for others
        for each in ids:
            if len(found.get(each, ())) < WINDOWS:
                found |= _planned(client, [each], WINDOWS)
    return {name: tuple(moments[:WINDOWS]) for name, moments in found.items()}


def _planned(client: httpx.Client, ids: Sequence[str], limit: int) -> dict[str, list[int]]:
    """Returns the next starts of some deployments, the earliest first, by the deployment's id."""
    planned = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    wanted = {
        "deployments": {"id": {"any_": list(ids)}},
        "flow_runs": planned,
        "sort": "EXPECTED_START_TIME_ASC",
        "limit": limit,
    }
    found: dict[str, list[int]] = {}
    for flow_run in _asked(client, "/flow_runs/filter", wanted):
        at = datetime.fromisoformat(str(flow_run["expected_start_time"]).replace("Z", "+00:00"))
        found.setdefault(str(flow_run["deployment_id"]), []).append(round(1000 * at.timestamp()))
    return found


def _view(deployment: Mapping[str, Any], starts: Sequence[int]) -> DeploymentView:
    parameters = dict(deployment["parameters"])
    return DeploymentView(
        name=str(deployment["name"]),
        run=str(parameters.get("deployed_run", "")),
        new_runs=parameters.get("run") == "new",
        schedules=tuple(_schedule(each["schedule"]) for each in deployment.get("schedules") or ()),
        longest=str(parameters.get("window") or ""),
        paused=bool(deployment.get("paused")),
        next=tuple(starts),
    )


def _schedule(schedule: Mapping[str, Any]) -> str:
    """Returns a schedule for people."""
    zone = schedule.get("timezone") or "UTC"
    if "cron" in schedule:
        return f"{schedule['cron']} ({zone})"
    if "rrule" in schedule:
        return f"{str(schedule['rrule']).rpartition('RRULE:')[2]} ({zone})"
    return f"every {float(schedule['interval']):g} s"


def _windows_run(each: DeploymentView) -> Cell:
    return SeveralCells(("new runs with the spec of ", RunCell(each.run))) if each.new_runs else RunCell(each.run)


def _next_windows(each: DeploymentView) -> Cell:
    return SeveralCells(tuple(MomentCell(at) for at in each.next), ", ") if each.next else "none planned"


DEPLOYMENTS: Columns[DeploymentView] = (
    Column("deployment", lambda each: f"{each.name} (paused)" if each.paused else each.name, heads=True, style="break"),
    Column("run", _windows_run),
    Column("windows begin", lambda each: "; ".join(each.schedules) or "by hand"),
    Column("at most", lambda each: each.longest or "no limit"),
    Column("next windows", _next_windows),
)
