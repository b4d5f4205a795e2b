"""The audit chain of the home: each link follows from the previous one, whoever adds it, and an altered one shows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, update

from db.core.models import HomeEvent
from db.ledger import Ledger


def test_links_that_are_added_at_the_same_time_form_one_chain(ledger: Ledger) -> None:
    with ThreadPoolExecutor(4) as together:
        list(together.map(lambda number: ledger.home_events.append("refused", {"number": number}), range(12)))
    links = ledger.home_events.links()
    assert [link.seq for link in links] == list(range(1, 13))
    assert {link.body["number"] for link in links} == set(range(12))
    assert ledger.home_events.verify() is None


@pytest.mark.parametrize("change", [update(HomeEvent).values(body={"by": "bob"}), delete(HomeEvent)])
def test_a_link_that_was_altered_or_deleted_shows(ledger: Ledger, change: object) -> None:
    for number in range(3):
        ledger.home_events.append("refused", {"by": "alice", "number": number})
    with ledger._database.write() as connection:
        connection.execute(change.where(HomeEvent.seq == 2))  # type: ignore[attr-defined]
    assert ledger.home_events.verify() == 2
