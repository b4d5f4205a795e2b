"""Notes and tags: what is kept, what is recorded in the audit chain, and what is refused."""

from __future__ import annotations

import pytest

from db.core.errors import AnnotationRefused, RunNotFound
from db.ledger import Ledger
from db.write.annotations import NOTE_CHARACTERS, NOTED, TAGGED, TAGS


@pytest.fixture
def run(ledger: Ledger) -> str:
    return ledger.runs.create("words", {}, "d", 4).id


@pytest.mark.postgresql
def test_a_note_is_replaced_and_every_version_is_recorded(ledger: Ledger, run: str) -> None:
    assert ledger.annotations.note(run) is None
    for text, by in (("first", "alice"), ("first", "bob"), ("second\nline", "bob"), ("", "alice"), ("", "bob")):
        ledger.annotations.write_note(run, text, by)
        note = ledger.annotations.note(run)
        assert (note.text if note else "") == text
    links = ledger.events.of_kind(run, NOTED)
    assert [(link.body["by"], link.body["text"]) for link in links] == [
        ("alice", "first"),
        ("bob", "second\nline"),
        ("alice", ""),
    ]
    assert ledger.events.verify(run) is None


@pytest.mark.postgresql
def test_tags_are_added_removed_and_found(ledger: Ledger, run: str) -> None:
    other = ledger.runs.create("words", {}, "d", 4).id
    assert ledger.annotations.change_tags(run, ["baseline", "lr-3"], [], "alice") == ("baseline", "lr-3")
    assert ledger.annotations.change_tags(run, ["baseline"], ["gone"], "bob") == ("baseline", "lr-3")
    assert ledger.annotations.change_tags(other, ["baseline"], [], "bob") == ("baseline",)
    assert ledger.annotations.change_tags(run, [], ["lr-3"], "bob") == ("baseline",)
    assert [link.body for link in ledger.events.of_kind(run, TAGGED)] == [
        {"by": "alice", "added": ["baseline", "lr-3"], "removed": []},
        {"by": "bob", "added": [], "removed": ["lr-3"]},
    ]
    ledger.annotations.change_tags(other, ["old"], [], "bob")
    assert ledger.annotations.all_tags() == {"baseline": 2, "old": 1}
    assert ledger.annotations.tags([run, other, "none"]) == {run: ("baseline",), other: ("baseline", "old")}

    def listed(*tags: str) -> list[str]:
        return [line.line.run.id for line in ledger.run_list.page(tags=tags).lines]

    assert (listed("baseline"), listed("baseline", "old"), listed("lr-3")) == ([other, run], [other], [])


@pytest.mark.parametrize("tag", ["", "two words", "Upper", "-dash", "x" * 41, "a\n", "ü"])
def test_an_invalid_tag_is_refused(ledger: Ledger, run: str, tag: str) -> None:
    with pytest.raises(AnnotationRefused, match="tag"):
        ledger.annotations.change_tags(run, ["fine", tag], [], "alice")
    assert ledger.annotations.tags([run]) == {} and ledger.events.of_kind(run, TAGGED) == []


def test_limits_hold_and_unknown_runs_are_refused(ledger: Ledger, run: str) -> None:
    many = [f"tag-{number}" for number in range(TAGS + 1)]
    with pytest.raises(AnnotationRefused, match=str(TAGS)):
        ledger.annotations.change_tags(run, many, [], "alice")
    assert len(ledger.annotations.change_tags(run, many, many[:1], "alice")) == TAGS
    with pytest.raises(AnnotationRefused, match=str(NOTE_CHARACTERS)):
        ledger.annotations.write_note(run, "x" * (NOTE_CHARACTERS + 1), "alice")
    with pytest.raises(RunNotFound):
        ledger.annotations.write_note("none", "x", "alice")
    with pytest.raises(RunNotFound):
        ledger.annotations.change_tags("none", ["x"], [], "alice")
