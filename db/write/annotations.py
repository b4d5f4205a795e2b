"""Notes and tags that people attach to runs; every change is a link of the run's audit chain.

Annotations are for people: no driver reads them, and they change no result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select, update

from db.core.engine import Database
from db.core.errors import AnnotationRefused
from db.core.models import RunNote, RunTag
from db.write.events import append, lock_run

NOTED = "note"
TAGGED = "tags"
"""Kinds of the events that record a new note, and added or removed tags."""
TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
TAGS = 20
"""Maximum number of a run's tags."""
NOTE_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Note:
    """A run's note: who wrote it and when, in milliseconds since 1970."""

    text: str
    by: str
    at: int


class Annotations:
    """Reads and changes notes and tags."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, run: str) -> Note | None:
        """Returns a run's note; None if it has none."""
        query = select(RunNote.text, RunNote.by, RunNote.at).where(RunNote.run == run)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Note(**row._mapping)

    def write_note(self, run: str, text: str, by: str) -> Note:
        """Replaces a run's note; an empty text removes it. An unchanged text is not recorded again.

        Raises `RunNotFound`; `AnnotationRefused` for a text that is too long.
        """
        if len(text) > NOTE_CHARACTERS:
            raise AnnotationRefused(f"note: {len(text)} characters; expected at most {NOTE_CHARACTERS}")
        with self._database.write() as connection:
            head = lock_run(connection, self._database, run)
            known = connection.execute(select(RunNote.text, RunNote.by, RunNote.at).where(RunNote.run == run))
            before = known.one_or_none()
            if (before.text if before else "") == text:
                return Note(**before._mapping) if before else Note("", by, int(head.now))
            link = append(connection, head, NOTED, {"by": by, "text": text})
            values = {"text": text, "by": by, "at": link.at}
            if not text:
                connection.execute(delete(RunNote).where(RunNote.run == run))
            elif before is None:
                connection.execute(insert(RunNote), {"run": run, **values})
            else:
                connection.execute(update(RunNote).where(RunNote.run == run).values(**values))
        return Note(text, by, link.at)

    def change_tags(self, run: str, add: Sequence[str], remove: Sequence[str], by: str) -> tuple[str, ...]:
        """Adds and removes tags; returns the run's tags afterwards. A change that changes nothing is not recorded.

        Raises `RunNotFound`; `AnnotationRefused` for an invalid tag or too many tags.
        """
        for tag in add:
            if TAG.fullmatch(tag) is None:
                raise AnnotationRefused(
                    f"tag {tag!r:.60}: expected up to 40 lower-case letters, digits, '.', '_' and '-', such as baseline"
                )
        with self._database.write() as connection:
            head = lock_run(connection, self._database, run)
            known = set(connection.execute(select(RunTag.tag).where(RunTag.run == run)).scalars())
            after = (known | set(add)) - set(remove)
            if len(after) > TAGS:
                raise AnnotationRefused(f"run {run}: {len(after)} tags; expected at most {TAGS}")
            added = sorted(after - known)
            removed = sorted(known - after)
            if added or removed:
                link = append(connection, head, TAGGED, {"by": by, "added": added, "removed": removed})
                connection.execute(delete(RunTag).where(RunTag.run == run, RunTag.tag.in_(removed)))
                if added:
                    connection.execute(
                        insert(RunTag), [{"run": run, "tag": tag, "by": by, "at": link.at} for tag in added]
                    )
        return tuple(sorted(after))

    def tags(self, runs: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the tags of runs, sorted; runs without any are left out."""
        query = select(RunTag.run, RunTag.tag).where(RunTag.run.in_(runs)).order_by(RunTag.run, RunTag.tag)
        found: dict[str, tuple[str, ...]] = {}
        with self._database.read() as connection:
            for run, tag in connection.execute(query):
                found[run] = (*found.get(run, ()), tag)
        return found

    def all_tags(self, limit: int = 500) -> Mapping[str, int]:
        """Returns the number of runs by tag, most frequent first."""
        count = func.count().label("runs")
        query = select(RunTag.tag, count).group_by(RunTag.tag).order_by(count.desc(), RunTag.tag).limit(limit)
        with self._database.read() as connection:
            return {row.tag: row.runs for row in connection.execute(query)}
