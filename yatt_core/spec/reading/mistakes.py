"""Turns pydantic's errors into readable ones: one line per mistake, with the key as it is written in the file.

Consumes a `ValidationError` of the spec. Produces places (keys and list indexes, without the names of union
members that pydantic inserts between them) and messages that state what is wrong and what is expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import described

Models = tuple[type[BaseModel], ...]
Document = TypeVar("Document", bound=BaseModel)
_BOOLEAN = re.compile(r"(?<!')\b(True|False)\b(?!')")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a spec.

    place: keys and list indexes from the top of the spec; empty if the mistake concerns several keys.
    meant: the known key that an unknown one probably stands for; empty if there is none.
    """

    place: tuple[str | int, ...]
    text: str
    meant: str = ""

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.place))}: {self.text}" if self.place else self.text


@dataclass(frozen=True, slots=True)
class _Spot:
    """A place in the spec.

    owners: the models that were searched for the last key of the place.
    models: the models allowed at this place.
    """

    place: tuple[str | int, ...]
    owners: Models
    models: Models


def parse_model(model: type[Document], tree: Any, origin: str) -> Document:
    """Returns the document in a tree of plain values. Raises `ConfigurationError` with a line per mistake.

    origin: the tree's name in error messages.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = [f"{origin}: {mistake}" for mistake in mistakes_in(error, model)]
        raise ConfigurationError("\n".join(lines)) from None


def mistakes_in(error: ValidationError, root: type[BaseModel]) -> Iterator[Mistake]:
    """Yields the mistakes in a validation error.

    root: the model that was validated.
    """
    for item in error.errors():
        if not _is_echo(item):
            yield from _explain(item, _locate(item["loc"], root))


def _is_echo(item: ErrorDetails) -> bool:
    """Returns True for a list reported as too short only because its invalid items were dropped."""
    return item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]


def _explain(item: ErrorDetails, spot: _Spot) -> Iterator[Mistake]:
    """Yields the mistakes behind one error."""
    place = spot.place
    context = item.get("ctx", {})
    given = f" (given: {described(item['input'])})"
    match item["type"]:
        case "extra_forbidden":
            keys = sorted({name for model in spot.owners for name in model.model_fields})
            meant = difflib.get_close_matches(str(place[-1]), keys, n=1)
            yield Mistake(place, f"unknown key; {_nearest(str(place[-1]), keys, 'keys')}", "".join(meant))
        case "missing":
            yield Mistake(place, "required but missing")
        case "union_tag_not_found":
            yield Mistake((*place, "kind"), f"required but missing; known kinds: {', '.join(_kinds(spot.models))}")
        case "union_tag_invalid":
            tag = str(context["tag"])
            yield Mistake((*place, "kind"), f"unknown kind {tag!r}; {_nearest(tag, _kinds(spot.models), 'kinds')}")
        case "model_type" | "model_attributes_type" | "dict_type":
            yield Mistake(place, f"expected a mapping of keys to values{given}")
        case "tuple_type":
            yield Mistake(place, f"expected a list{given}")
        case "too_short":
            least = context["min_length"]
            yield Mistake(place, f"expected at least {least} item{'s' if least > 1 else ''}")
        case "too_long":
            yield Mistake(place, f"expected at most {context['max_length']} items")
        case "value_error":
            yield from (Mistake(place, line) for line in str(context["error"]).splitlines())
        case "literal_error":
            yield Mistake(place, f"{_BOOLEAN.sub(_as_written, item['msg'])}{given}")
        case _:
            yield Mistake(place, f"{item['msg']}{given}")


def _as_written(found: re.Match[str]) -> str:
    """Returns Python's name of a boolean as a file has it."""
    return found.group().lower()


def _nearest(name: str, known: Sequence[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known {what}: {', '.join(known)}"


def _locate(location: Sequence[str | int], root: type[BaseModel]) -> _Spot:
    """Follows pydantic's location through the models, leaving out the parts that are not keys of the file."""
    place: list[str | int] = []
    owners: Models = ()
    models: Models = (root,)
    chosen = True
    named = False
    for step, part in enumerate(location):
        if not models:
            # Below a free-form value, every second part of the location is the name of a JSON type.
            return _Spot((*place, *location[step::2]), (), ())
        if not chosen and (members := tuple(model for model in models if kind_of(model) == part)):
            models = members
            chosen = True
            continue
        place.append(part)
        if named:  # an item of a mapping, whose name the user chose
            chosen = named = False
            continue
        owners = models
        chosen = False
        if isinstance(part, str):
            named = any(_is_mapping(model, part) for model in models)
            models = tuple(models_at(models, part))
    return _Spot(tuple(place), owners, models)


def models_at(models: Models, key: str) -> Iterator[type[BaseModel]]:
    """Yields the models that a key of any of the given models may hold."""
    for model in models:
        if key in model.model_fields:
            yield from _models_in(model.model_fields[key].annotation)


def _is_mapping(model: type[BaseModel], key: str) -> bool:
    field = model.model_fields.get(key)
    origin = None if field is None else get_origin(field.annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def kind_of(model: type[BaseModel]) -> str | None:
    """Returns the `kind` that identifies a member of a union; None if it has no single one."""
    field = model.model_fields.get("kind")
    values = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
    return str(values[0]) if len(values) == 1 else None


def _kinds(models: Iterable[type[BaseModel]]) -> list[str]:
    return [kind for model in models if (kind := kind_of(model))]
