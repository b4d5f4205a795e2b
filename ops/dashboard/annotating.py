"""API routes for notes and tags. Each needs a named token, and records its name in the audit chain."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from db.write.annotations import TAGS, Note
from ops.web.access import Acting
from ops.web.bodies import Body
from ops.web.context import RunId, Served
from ops.web.texts import NoteText, TagName

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["annotations"])
TagNames = Annotated[tuple[TagName, ...], Field(max_length=TAGS)]


class NoteRequest(Body):
    """A request to replace a run's note.

    text: the new note; empty: removes it.
    """

    text: NoteText


class TagsRequest(Body):
    """A request to add and remove tags."""

    add: TagNames = ()
    remove: TagNames = ()


class RunTags(BaseModel):
    """The tags of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    tags: tuple[str, ...]


@router.put("/note")
def write_note(served: Served, by: Acting, run_id: RunId, asked: NoteRequest) -> Note:
    """Replaces the run's note."""
    return served.ledger.annotations.write_note(run_id, asked.text, by)


@router.post("/tags")
def change_tags(served: Served, by: Acting, run_id: RunId, asked: TagsRequest) -> RunTags:
    """Adds and removes tags of the run."""
    return RunTags(run=run_id, tags=served.ledger.annotations.change_tags(run_id, asked.add, asked.remove, by))
