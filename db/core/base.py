"""What all tables of the ledger share: names of constraints, types of columns, and the columns of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

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

NEWER = "a newer version of YATT"
FOR_EVER = 2**52
"""Milliseconds since 1970: no lease expires so late."""


class Base(DeclarativeBase):
    """All tables of the ledger."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text,
        int: BigInteger,
        float: Double,
        bytes: LargeBinary,
        bool: Boolean,
        dict[str, Any]: JSON(none_as_null=True),
        Mapping[str, Any]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
    }


class ChainLink:
    """The columns of a link of an audit chain; its hash covers its contents and the hash of the previous link."""

    at: Mapped[int]
    kind: Mapped[str]
    body: Mapped[dict[str, Any]]
    prev_hash: Mapped[str]
    hash: Mapped[str]


class OlderLease:
    """Where versions before migration 0009 keep a lease; nothing else reads it.

    It is held for ever, so that a process of such a version, which is still at work, waits instead of taking it.
    """

    term: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None] = mapped_column(default=NEWER)
    host: Mapped[str | None] = mapped_column(default="")
    boot_id: Mapped[str | None] = mapped_column(default="")
    pid: Mapped[int | None] = mapped_column(default=0)
    process_start: Mapped[int | None] = mapped_column(default=0)
    expires_at: Mapped[int] = mapped_column(default=FOR_EVER)


def run_key() -> Mapped[str]:
    """Returns the column of the run that a row belongs to, as part of the primary key."""
    return mapped_column(ForeignKey("run.id"), primary_key=True)


def key_part() -> Mapped[Any]:
    """Returns a column of the primary key; its values are given, never generated."""
    return mapped_column(primary_key=True, autoincrement=False)
