"""What every route works with: the ledger, the home folder, who may act, and how much is under way at once.

One is made with the application and kept in its state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Query, Request
from pydantic import Field

from db.ledger import Ledger
from flows.run.home import Home
from ops.dashboard.driving import Drivers
from ops.dashboard.sessions import Sessions
from ops.dashboard.texts import Text
from ops.dashboard.tokens import TokenStore

READS = 2
"""Whole checkpoints that are read at a time: each takes minutes of one of the threads that all routes share."""
RETRY_SECONDS = 30
LARGEST = 10**9 - 1
"""Of iterations and offsets: more than any run has, and no more than a database takes."""


@dataclass(slots=True)
class OpenStreams:
    """How many live streams are open; counted on the event loop alone."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """The application's own. tokens: who may change something. sessions: those of them who signed in with a browser."""

    home: Home
    ledger: Ledger
    tokens: TokenStore
    sessions: Sessions
    streams: OpenStreams
    drivers: Drivers = field(default_factory=Drivers)
    reads: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(READS))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While a whole checkpoint is read. Raises `HTTPException` 503 where as many are as may be."""
        if not self.reads.acquire(blocking=False):
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{READS} checkpoints are being read already, by Verify or Promote; try again when one is done",
                {"Retry-After": str(RETRY_SECONDS)},
            )
        try:
            yield
        finally:
            self.reads.release()


def context_of(request: Request) -> Context:
    """The context of the application that serves a request."""
    context: Context = request.app.state.context
    return context


Served = Annotated[Context, Depends(context_of)]
RunId = Annotated[Text, Path(min_length=1, description="The whole id of a run.")]
Number = Annotated[int, Field(ge=0, le=LARGEST)]
"""Of an iteration, a branch or a term, wherever it stands in a request."""
Iteration = Annotated[Number, Path(description="An iteration.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]
Offset = Annotated[int, Query(ge=0, le=100_000, description="How many to leave out.")]
Before = Annotated[int | None, Query(ge=0, le=2**53, description="What `next` of the page before said.")]
SearchText = Annotated[Text, Query(description="A text that has to be in it.")]
