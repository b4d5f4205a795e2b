"""Rows that define their tables: a dataclass whose fields are the columns, read and written as it is.

A field's type is its column's, by `Base.type_annotation_map`; a column may be null if its type says so. Of the class, a field is
the column, for queries; of a row, it is the value:

    class JobRow(TableRow, name="pipeline_job"):
        pipeline: Stored[str] = stored(ForeignKey("pipeline.id"), primary_key=True)
        ended_at: Stored[int | None]

    select(*JobRow.__table__.columns).where(JobRow.ended_at.is_(None))

A table whose rows are only ever read in part, or together with others, is a class of `Base` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
    overload,
)

from sqlalchemy import Column, ForeignKey, Table
from sqlalchemy.schema import SchemaItem

from db.core.base import Base

Value = TypeVar("Value")


class Stored(Generic[Value]):
    """The type of a field that is a column, for type checkers; once the class is made, its fields have the values' types."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, row: None, owner: type[Any]) -> Column[Value]: ...
        @overload
        def __get__(self, row: object, owner: type[Any]) -> Value: ...
        def __get__(self, row: object, owner: type[Any]) -> Any: ...
        def __set__(self, row: object, value: Value) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredField:
    """What a field has beside its name and type.

    foreign: the keys that its column refers to.
    of_column, of_field: more arguments of SQLAlchemy's `Column`, and of the dataclass's field.
    """

    foreign: tuple[ForeignKey, ...]
    of_column: Mapping[str, Any]
    of_field: Mapping[str, Any]


def stored(*foreign: ForeignKey, default: Any = ..., compare: bool = True, **of_column: Any) -> Any:
    """Returns a field with more than a name and a type.

    default: of the dataclass; without one, the value must be given.
    compare: whether rows that differ only in it are different.
    of_column: as of SQLAlchemy's `Column`, such as `primary_key`.
    """
    of_field = {"compare": compare} | ({} if default is ... else {"default": default})
    return StoredField(foreign, of_column, of_field)


def stored_run() -> Any:
    """Returns the field of the run that a row belongs to, as part of the primary key."""
    return stored(ForeignKey("run.id"), primary_key=True)


def stored_key() -> Any:
    """Returns a field of the primary key; its values are given, never generated."""
    return stored(primary_key=True, autoincrement=False)


@dataclass_transform(frozen_default=True, field_specifiers=(stored, stored_run, stored_key))
class TableRow:
    """A row of the table that its class defines; a frozen dataclass."""

    __table__: ClassVar[Table]

    def __init_subclass__(cls, name: str, parts: tuple[SchemaItem, ...] = ()) -> None:
        """Makes the class a dataclass, and its table one of the ledger's.

        name: of the table.
        parts: its indexes, and its constraints over several columns.
        """
        super().__init_subclass__()
        kinds = get_type_hints(cls)
        cls.__annotations__ = {each: get_args(kinds[each])[0] for each in cls.__annotations__}
        columns = [_column(cls, each, kind) for each, kind in cls.__annotations__.items()]
        dataclass(frozen=True)(cls)
        cls.__table__ = Table(name, Base.metadata, *columns, *parts)
        for column in columns:
            setattr(cls, column.name, column)  # rows have their values in themselves, and hide it

    @classmethod
    def __clause_element__(cls) -> Table:
        """Returns the table; SQLAlchemy asks for it where a class stands for its table."""
        return cls.__table__


def _column(cls: type[TableRow], name: str, kind: Any) -> Column[Any]:
    """Returns the column of a field, and leaves in the class what the dataclass wants to know of the field."""
    may_be_null = NoneType in get_args(kind)
    of_value = next(each for each in get_args(kind) if each is not NoneType) if may_be_null else kind
    given = cls.__dict__.get(name, StoredField((), {}, {}))
    if name in cls.__dict__:
        setattr(cls, name, field(**given.of_field))
    return Column(name, Base.type_annotation_map[of_value], *given.foreign, nullable=may_be_null, **given.of_column)
