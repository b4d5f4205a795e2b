"""The client: every operation of the API, and the live updates of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

import httpx

from yatt_client.errors import error_of
from yatt_client.models import ListedRun
from yatt_client.operations import Operations
from yatt_client.transport import problem_of, segment

EVENT = "event: "
DATA = "data: "
NOBODY = "nobody"
CREATED = "created"
END = "end"


class Client(Operations):
    """A client of YATT's HTTP API."""

    def follow(self, run_id: str, start_seconds: float = 120.0) -> Iterator[ListedRun]:
        """Yields the run's summary now and whenever it changes, until nobody drives it any more.

        start_seconds: how long a new run may be without a driver; then `Unavailable` is raised.

        Raises `ApiError`.
        """
        path = f"/api/v1/runs/{segment(run_id)}/live"
        last = None
        give_up = time.monotonic() + start_seconds
        try:
            with self._http.stream("GET", path) as response:
                if response.is_error:
                    response.read()
                    raise problem_of(response)
                for kind, data in events(response.iter_lines()):
                    if kind == END:
                        return
                    if data is not None:
                        last = data
                        yield data
                        if data["driver"] == NOBODY and data["state"] != CREATED:
                            return
                    if last is not None and last["state"] == CREATED and time.monotonic() > give_up:
                        raise error_of(0, f"run {run_id} has no driver after {start_seconds:g} s; see its resume.log")
        except httpx.HTTPError as error:
            raise error_of(0, f"GET {path}: {error}") from error


def events(lines: Iterable[str]) -> Iterator[tuple[str, ListedRun | None]]:
    """Yields the kind and the data of server-sent events, and an empty kind without data for a comment."""
    kind = ""
    for line in lines:
        if line.startswith(":"):
            yield "", None
        elif line.startswith(EVENT):
            kind = line.removeprefix(EVENT)
        elif line.startswith(DATA):
            found: ListedRun = json.loads(line.removeprefix(DATA))
            yield kind, found
