"""What every route works with: the ledger, the home folder, who may act, and how many streams are open.

One is made with the application and kept in its state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from db.ledger import Ledger
from flows.home import Home
from ops.dashboard.sessions import Sessions
from ops.dashboard.tokens import TokenStore

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


def context_of(request: Request) -> Context:
    """The context of the application that serves a request."""
    context: Context = request.app.state.context
    return context


Served = Annotated[Context, Depends(context_of)]
RunId = Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$", description="The whole id of a run.")]
Iteration = Annotated[int, Path(ge=0, le=LARGEST, description="An iteration.")]
SomeNumber = Annotated[int | None, Query(ge=0, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]
Offset = Annotated[int, Query(ge=0, le=100_000, description="How many to leave out.")]
Before = Annotated[int | None, Query(ge=0, le=2**53, description="What `next` of the page before said.")]
SearchText = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$", description="A text that has to be in it.")]
