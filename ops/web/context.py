"""The context shared by all routes (ledger, home folder, tokens, sessions and limits) and common request parameters.

The context is created with the application and stored in its state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Query, Request
from pydantic import Field

from db.ledger import Ledger
from flows.prefect_io.prefect_server import SharedServer, named_server
from flows.run.home import Home
from flows.run.pages import Pages
from ops.people.openid import OpenIdProvider
from ops.people.tokens import TokenStore
from ops.web.driving import StartedDrivers
from ops.web.sessions import Sessions
from ops.web.texts import Text

READS = 2
"""Maximum number of whole checkpoints read at a time; each occupies one of the shared worker threads for minutes.

The check of a spec may take as long, and half of the memory, so only one runs at a time.
"""
RETRY_SECONDS = 30
LARGEST = 10**9 - 1
"""Largest iteration or offset accepted: more than any run has, and within a database integer."""


@dataclass(slots=True)
class OpenStreams:
    """The number of open live streams; changed only on the event loop."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """The application's context.

    tokens: named tokens that allow changes.
    sessions: browser sessions, opened with these tokens or through a provider.
    pages: returns the servers whose pages show runs.
    reading_needs_sign_in: whether even reading needs a token or a session.
    provider: the OpenID Connect provider through which people sign in; None if there is none.
    prefect: returns the Prefect server that has the deployments; None if none is known.
    """

    home: Home
    ledger: Ledger
    tokens: TokenStore
    sessions: Sessions
    streams: OpenStreams
    pages: Callable[[], Pages] = Pages
    reading_needs_sign_in: bool = False
    provider: OpenIdProvider | None = None
    prefect: Callable[[], SharedServer | None] = named_server
    drivers: StartedDrivers = field(default_factory=StartedDrivers)
    reads: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(READS))
    checks: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(1))

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Reserves the only slot for checking a spec. Raises `HTTPException` 503 if it is in use."""
        with _reserved(self.checks, "another spec is being checked; try again when its check is done"):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reserves one of the slots for reading a whole checkpoint. Raises `HTTPException` 503 if all are in use."""
        said = f"Verify and Promote are already reading {READS} checkpoints; try again when one is done"
        with _reserved(self.reads, said):
            yield


@contextmanager
def _reserved(slots: threading.BoundedSemaphore, said: str) -> Iterator[None]:
    """Reserves a slot. Raises `HTTPException` 503 with the given text if there is none."""
    if not slots.acquire(blocking=False):
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, said, {"Retry-After": str(RETRY_SECONDS)})
    try:
        yield
    finally:
        slots.release()


def context_of(request: Request) -> Context:
    """Returns the context of the application that serves a request."""
    context: Context = request.app.state.context
    return context


Served = Annotated[Context, Depends(context_of)]
RunId = Annotated[Text, Path(min_length=1, description="The full id of a run.")]
Number = Annotated[int, Field(ge=0, le=LARGEST)]
"""The number of an iteration, a branch or a term, in any part of a request."""
Iteration = Annotated[Number, Path(description="Iteration number.")]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of results.")]
Offset = Annotated[int, Query(ge=0, le=100_000, description="Number of results to skip.")]
Before = Annotated[int | None, Query(ge=0, le=2**53, description="The value of `next` on the previous page.")]
SearchText = Annotated[Text, Query(description="Text that results must contain.")]
