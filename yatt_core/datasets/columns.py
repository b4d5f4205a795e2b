"""Columns of tables: which are read, which hold JSON texts, and which hold times that were something else when written.

Consumes Arrow schemas, the keys that a source names, and values as Arrow gives them. Produces columns and plain JSON values.
Raises `DataError`, which names file and column.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from yatt_core.datasets.limits import check_depth
from yatt_core.errors import DataError
from yatt_core.json_text import DECODER
from yatt_core.prompts.keys import column_of, path_in

FEATURES = b"huggingface"
"""Key of a schema's metadata under which `datasets` describes the columns."""
_INDEX = re.compile(r"__index_level_\d+__")
"""Names of the columns in which pandas keeps the numbers of rows."""
_FILLED = frozenset({"role", "from", "function", "parameters"})
"""Keys by which messages and descriptions of tools are known."""


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """The keys that a source names, as they are read from a table.

    prompts: those of the prompt.
    given_back: those whose values are learnt or compared as they were written, so that they cannot be times.
    checked: those that are read whatever their type, so that the row's reader can say what is wrong with it.
    images: the key of the images, whose values are bytes; None if there are none.
    """

    prompts: Collection[str]
    given_back: Collection[str]
    checked: Collection[str]
    images: str | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are read from a table.

    texts: those that are converted to text by Arrow.
    parsed: the places of the JSON texts in those that hold some, or hold something that JSON lacks, as features of `datasets`.
    filled: those with lists of objects.
    narrow: those of 32 or 16 bits whose numbers are given back with the digits that they were written with.
    images: the column of the images; None if there is none.
    """

    names: Sequence[str]
    texts: Collection[str]
    parsed: Mapping[str, Any]
    filled: Collection[str]
    narrow: Collection[str]
    images: str | None


def columns_of(path: Path, schema: pa.Schema, wanted: SourceKeys) -> Columns:
    """Returns the columns to read, in the table's order."""
    check_depth(path, schema)
    _check_fields(path, schema)
    _refuse_times(path, schema, wanted.given_back)
    features = _features(schema)
    needed = {column_of(key, schema.names) for key in (*wanted.checked, *([wanted.images] if wanted.images else []))}
    kept = [
        field
        for field in schema
        if (field.name in needed or is_text(field.type) or _is_plain(field.type)) and not _INDEX.fullmatch(field.name)
    ]
    places = {field.name: _json_places(field.type, features.get(field.name)) for field in kept}
    return Columns(
        names=[field.name for field in kept],
        texts=[field.name for field in kept if is_text(field.type)],
        parsed={
            field.name: places[field.name]
            for field in kept
            if _has_json(places[field.name]) or not _is_plain(field.type)
        },
        filled=[field.name for field in kept if _has_objects(field.type)],
        narrow=[
            field.name
            for field in kept
            if field.name in wanted.given_back and (pa.types.is_float32(field.type) or pa.types.is_float16(field.type))
        ],
        images=None if wanted.images is None else column_of(wanted.images, schema.names),
    )


def prompt_columns(schema: pa.Schema, keys: Collection[str]) -> list[str]:
    """Returns the columns into which the keys of the prompt lead, in the table's order."""
    found = {column_of(key, schema.names) for key in keys}
    return [name for name in schema.names if name in found]


def plain_row(path: Path, number: int, row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Returns a row as plain JSON values; bytes are left in the column of the images, and where a column has nothing else."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if name in columns.narrow and value is not None:
            value = float(str(np.float32(value)))
        value = finite(value)
        if name in columns.filled:  # before JSON texts are parsed, whose nulls somebody wrote
            value = unfilled(value)
        if name in columns.parsed:
            try:
                value = _parsed(value, columns.parsed[name])
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number}: column {name!r} is not JSON: {error}") from None
            value = value if name == columns.images else _jsonable(value)
        plain[name] = value
    return plain


def finite(value: Any) -> Any:
    """Returns the value with null in place of each non-finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


def unfilled(value: Any) -> Any:
    """Returns the value without the nulls in messages and in descriptions of tools.

    A table gives each object in a list all the keys that any other has, so that a call would get the arguments of others.
    """
    if isinstance(value, list):
        objects = bool(value) and all(isinstance(item, dict) and not item.keys().isdisjoint(_FILLED) for item in value)
        return [_without_nulls(item) if objects else unfilled(item) for item in value]
    if isinstance(value, dict):
        return {key: unfilled(item) for key, item in value.items()}
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def is_text(kind: pa.DataType) -> bool:
    """Returns True for types that are converted to text."""
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raises `DataError` if two columns share a name, because a row can hold only one."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: two columns are named {twice[0]!r}; rename one of them")


def _check_fields(path: Path, fields: Iterable[pa.Field]) -> None:
    """Raises `DataError` if columns, or nested fields at any depth, share a name."""
    fields = list(fields)
    check_names(path, [field.name for field in fields])
    for field in fields:
        kind = field.type
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_fields(path, (kind.field(i) for i in range(kind.num_fields)))


def _refuse_times(path: Path, schema: pa.Schema, keys: Collection[str]) -> None:
    for key in keys:
        column = column_of(key, schema.names)
        if column is None:
            continue
        kind = schema.field(column).type
        for name in path_in(key, column):
            kind = _below(kind, name)
        if (found := next((each for each in _inner(kind) if _is_time(each)), None)) is not None:
            raise DataError(
                f"{path}: column {key!r} holds values of type {found}: the program that wrote the file took texts for times, "
                "and how they were written is lost; write the column as text (datasets: features with Value('string'))"
            )


def _is_time(kind: pa.DataType) -> bool:
    """Returns True for times that cannot be given back as they were written; a day can."""
    return bool(pa.types.is_temporal(kind) and not pa.types.is_date32(kind))


def _below(kind: pa.DataType, name: str) -> pa.DataType:
    if pa.types.is_struct(kind) and (place := kind.get_field_index(name)) >= 0:
        return kind.field(place).type
    return pa.null()


def _inner(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields a type, and that of its elements if it is a list."""
    yield kind
    while _is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
        yield kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _has_objects(kind: pa.DataType) -> bool:
    """Returns True for lists of objects, at any depth of objects."""
    if pa.types.is_struct(kind):
        return any(_has_objects(kind.field(i).type) for i in range(kind.num_fields))
    return _is_list(kind) and (pa.types.is_struct(kind.value_type) or _has_objects(kind.value_type))


def _is_plain(kind: pa.DataType) -> bool:
    """Returns True for types that are JSON values at any depth."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    if _is_list(kind) or types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    simple = (
        types.is_null,
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_string,
        types.is_large_string,
        _is_json,
    )
    return any(test(kind) for test in simple)


def _is_json(kind: pa.DataType) -> bool:
    """Returns True for Arrow's own type of JSON texts, in which `datasets` stores the feature `Json`."""
    return isinstance(kind, pa.JsonType)


def _json_places(kind: pa.DataType, feature: Any) -> Any:
    """Returns the feature of `datasets` by which a column's JSON texts are found, or the same made from its type."""
    if _has_json(feature):
        return feature
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _json_places(kind.field(i).type, None) for i in range(kind.num_fields)}
    if _is_list(kind):
        return [_json_places(kind.value_type, None)]
    return {"_type": "Json"} if _is_json(kind) else None


def _has_json(feature: Any) -> bool:
    if isinstance(feature, list):
        return any(map(_has_json, feature))
    return isinstance(feature, dict) and (feature.get("_type") == "Json" or any(map(_has_json, feature.values())))


def _features(schema: pa.Schema) -> Mapping[str, Any]:
    """Returns the features by which `datasets` describes the columns; empty if another program wrote the table."""
    try:
        described = json.loads((schema.metadata or {}).get(FEATURES, b"{}"))
        features = described["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _parsed(value: Any, feature: Any) -> Any:
    """Returns a value with the JSON texts in it parsed, at the places that a feature of `datasets` names."""
    if isinstance(feature, dict) and feature.get("_type") == "Json":
        return DECODER.decode(value) if isinstance(value, str) else value
    if isinstance(value, list):
        inner = feature.get("feature") if isinstance(feature, dict) else feature[0] if feature else None
        return [_parsed(item, inner) for item in value]
    if isinstance(value, dict) and isinstance(feature, dict):
        return {key: _parsed(item, feature.get(key)) for key, item in value.items()}
    return value


def _jsonable(value: Any) -> Any:
    """Returns a value with texts in place of times and decimals, and without the bytes in objects."""
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items() if not isinstance(item, bytes)}
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    return value
