"""Rows that define their tables: the class is the table for queries, and its rows are frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any, get_type_hints

import pytest
from sqlalchemy import Column, ForeignKey, Index, MetaData, Table, Text, create_engine, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from db.core.base import NAMES, Base
from db.core.table_rows import Stored, TableRow, stored, stored_key, stored_run

SQLITE = """
CREATE TABLE sighting (
	run TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	place TEXT, 
	body JSON NOT NULL, 
	weight DOUBLE NOT NULL, 
	seen BOOLEAN DEFAULT '0' NOT NULL, 
	at BIGINT NOT NULL, 
	CONSTRAINT sighting_pk PRIMARY KEY (run, number), 
	CONSTRAINT sighting_run_fk FOREIGN KEY(run) REFERENCES run (id), 
	CONSTRAINT sighting_place_fk FOREIGN KEY(place) REFERENCES place (name)
)

"""  # noqa: W291  (as SQLAlchemy writes it)


@pytest.fixture
def sighting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Defines a row; its table is not one of the ledger's."""
    monkeypatch.setattr(Base, "metadata", MetaData(naming_convention=NAMES))

    class Sighting(TableRow, name="sighting", parts=(Index("sighting_index", "place"),)):
        run: Stored[str] = stored_run()
        number: Stored[int] = stored_key()
        place: Stored[str | None] = stored(ForeignKey("place.name"))
        body: Stored[Mapping[str, Any]]
        weight: Stored[float]
        seen: Stored[bool] = stored(server_default="0")
        at: Stored[int] = stored(default=0, compare=False)

        @property
        def name(self) -> str:
            return f"{self.run}/{self.number}"

    Table("run", Base.metadata, Column("id", Text, primary_key=True))
    Table("place", Base.metadata, Column("name", Text, primary_key=True))
    return Sighting


def test_the_class_is_the_table(sighting: Any) -> None:
    assert str(CreateTable(sighting.__table__).compile(dialect=sqlite.dialect())) == SQLITE
    on_postgresql = str(CreateTable(sighting.__table__).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    assert "weight DOUBLE PRECISION NOT NULL" in on_postgresql and "seen BOOLEAN DEFAULT '0' NOT NULL" in on_postgresql
    assert [index.name for index in sighting.__table__.indexes] == ["sighting_index"]
    assert get_type_hints(sighting)["place"] == (str | None), "the API's document and other readers see plain types"


def test_rows_are_frozen_values_that_queries_read_and_write(sighting: Any) -> None:
    row = sighting("toy-1", 1, None, {"a": 1}, 0.5, True)
    assert row.name == "toy-1/1" and row.at == 0 and row == replace(row, at=5) and row != replace(row, number=2)
    with pytest.raises(FrozenInstanceError):
        row.number = 2
    with pytest.raises(TypeError, match="weight"):
        sighting("toy-1", 1, None, {})
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(sighting), asdict(row))
        connection.execute(update(sighting).where(sighting.number == 1).values(at=7))
        (found,) = connection.execute(select(*sighting.__table__.columns).where(sighting.place.is_(None)))
        assert connection.execute(select(sighting.number).where(sighting.body["a"].as_integer() == 1)).scalar() == 1
    engine.dispose()
    again = sighting(**found._mapping)
    assert again == row and again.at == 7
