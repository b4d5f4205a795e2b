"""A run of an earlier version goes on without Ray's object store, and its audit chain says so, once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from db.ledger import Ledger
from flows.driver.transport_record import TRANSPORT, record_transport
from tests.flows.placement.test_seats import begin
from tests.inputs.example_specs import SPELL, run_spec


@pytest.mark.parametrize(
    ("asked", "kind", "links"), [("store", "torch", 1), ("direct", "torch", 0), ("store", "virtual", 0)]
)
def test_another_way_than_the_spec_says_is_recorded_once(tmp_path: Path, asked: str, kind: str, links: int) -> None:
    """Virtual engines are sent no weights."""
    engine = {"engine": {"kind": kind}}
    said: list[str] = []
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("words", {}, "d", 4).id
        context: Any = SimpleNamespace(
            run=run,
            spec=run_spec(SPELL, rollout=engine, trainer={"sync_transport": asked, **engine}),
            ledger=ledger,
            fence=begin(ledger, run),
            observer=SimpleNamespace(stage=said.append),
        )
        for _ in range(2):
            record_transport(context)
        assert [link.body for link in ledger.events.of_kind(run, TRANSPORT)] == [
            {"asked": "store", "used": "direct"}
        ] * links
        assert ledger.events.verify(run) is None
    assert len(said) == links and all("trainer.sync_transport: store" in line for line in said)
