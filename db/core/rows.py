"""Reads rows of a table into the dataclass that names the wanted columns."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, select

Row = TypeVar("Row")


def rows_of(
    connection: Connection, table: Any, kind: type[Row], run: str, order: Any, **special: ColumnElement[Any]
) -> tuple[Row, ...]:
    """Returns a run's rows in the given order.

    special: columns by field name, for fields that are not the table's column of the same name.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    columns = [special.get(name, table.__table__.columns[name]) for name in names]
    rows = connection.execute(select(*columns).where(table.run == run).order_by(order))
    return tuple(kind(**row._mapping) for row in rows)
