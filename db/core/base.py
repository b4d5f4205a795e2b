"""What all tables of the ledger share: names of constraints, types of columns, and the columns of keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Double, ForeignKey, Integer, LargeBinary, MetaData, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "pk": "%(table_name)s_pk",
    "fk": "%(table_name)s_%(column_0_name)s_fk",
    "uq": "%(table_name)s_%(column_0_N_name)s_unique",
    "ix": "%(table_name)s_%(column_0_N_name)s_index",
}
COUNTER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite assigns primary keys automatically only if the column's type is INTEGER."""


class Base(DeclarativeBase):
    """All tables of the ledger."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it from the class)
        str: Text,
        int: BigInteger,
        float: Double,
        bytes: LargeBinary,
        bool: Boolean,
        dict[str, Any]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
    }


class ChainLink:
    """The columns of a link of an audit chain; its hash covers its contents and the hash of the previous link."""

    at: Mapped[int]
    kind: Mapped[str]
    body: Mapped[dict[str, Any]]
    prev_hash: Mapped[str]
    hash: Mapped[str]


def run_key() -> Mapped[str]:
    """Returns the column of the run that a row belongs to, as part of the primary key."""
    return mapped_column(ForeignKey("run.id"), primary_key=True)


def key_part() -> Mapped[Any]:
    """Returns a column of the primary key; its values are given, never generated."""
    return mapped_column(primary_key=True, autoincrement=False)
