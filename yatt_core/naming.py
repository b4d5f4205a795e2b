"""What a spec names that lies outside of it: code, files and folders, addresses, secrets, and repositories.

Pure. Sections mark the fields whose values name something; the marks are in the JSON schema as `x-names`. Consumes a
section; produces what it names, so that a spec can be refused that names more than its author may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema, to_jsonable_python

from yatt_core.errors import ConfigurationError

Kind = Literal["code", "path", "url", "secret", "repository"]
MARK = "x-names"
"""The key of the mark in the JSON schema."""
WORDS: Mapping[Kind, str] = {
    "code": "code",
    "path": "a file or folder",
    "url": "an address",
    "secret": "where a secret is",
    "repository": "a repository of the Hub",
}
"""What something of a kind is called in messages."""


@dataclass(frozen=True, slots=True)
class Names:
    """The mark of a field.

    kind: what its value names.
    except_for: values that name nothing outside.
    """

    kind: Kind
    except_for: frozenset[str] = frozenset()

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        schema[MARK] = self.kind
        return schema


@dataclass(frozen=True, slots=True, order=True)
class Named:
    """Something that a spec names.

    key: where, such as `rewards.parts.0.file`.
    value: what, as JSON.
    """

    key: str
    kind: Kind
    value: str


def named_in(section: BaseModel) -> frozenset[Named]:
    """Returns what a section and those below it name; defaults aside, since nobody has written them."""
    return frozenset(_in_model(section, ""))


def permit_known(known: frozenset[Named], remedy: str) -> Callable[[BaseModel], None]:
    """Returns what raises `ConfigurationError` for a section that names anything else than what is known.

    remedy: what to do instead, for the message.
    """

    def permit(section: BaseModel) -> None:
        new = sorted(named_in(section) - known)
        if new:
            raise ConfigurationError("\n".join(f"{each.key}: names {WORDS[each.kind]}; {remedy}" for each in new))

    return permit


def _in_model(model: BaseModel, place: str) -> Iterator[Named]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value == field.get_default(call_default_factory=True):
            continue
        key = f"{place}{name}"
        marks = [mark for mark in field.metadata if isinstance(mark, Names)]
        if not marks:
            yield from _in_value(value, key)
        elif value not in (None, {}) and not (isinstance(value, str) and value in marks[0].except_for):
            yield Named(key, marks[0].kind, json.dumps(to_jsonable_python(value), sort_keys=True))


def _in_value(value: Any, key: str) -> Iterator[Named]:
    match value:
        case BaseModel():
            yield from _in_model(value, f"{key}.")
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _in_value(item, f"{key}.{index}")
        case Mapping():
            for name, item in value.items():
                yield from _in_value(item, f"{key}.{name}")
