"""Runs the checks across keys on those parts of a spec that are sound, so that one attempt reports all mistakes.

Consumes a tree that was refused, and the mistakes found in single keys. Produces the contradictions between the
other keys. A spec is built without the wrong keys; a check that reads one of them ends early and reports nothing
more, because what was meant is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter

from yatt_core.spec.base import KIND, SpecModel
from yatt_core.spec.reading.mistakes import Mistake, kind_of, models_at
from yatt_core.spec.run import RunSpec

Place = tuple[str, ...]


def further_mistakes(tree: Any, found: Sequence[Mistake], unread: Iterable[Sequence[str]] = ()) -> Iterator[Mistake]:
    """Yields the contradictions that can be seen despite the mistakes found.

    unread: places of keys whose values could not be read.
    """
    wrong = {tuple(map(str, place)) for place in unread}
    for mistake in found:
        place = tuple(map(str, mistake.place))
        wrong.add(place)
        if mistake.meant:
            wrong.add((*place[:-1], mistake.meant))
        if place and place[-1] == KIND:
            wrong.add(place[:-1])
    if () in wrong or not isinstance(tree, Mapping):  # the checks across sections have run
        return
    yield from _Builder(wrong).checked(tree)


class _Builder:
    """Builds models without the wrong keys; remembers the sections whose own checks are still to be run."""

    def __init__(self, wrong: set[Place]) -> None:
        self._wrong = wrong
        self._left_out = set[tuple[type[Any], str | None]]()
        self._partial: list[tuple[Place, SpecModel]] = []

    def checked(self, tree: Mapping[str, Any]) -> Iterator[Mistake]:
        """Yields the contradictions within and across the sections of a spec."""
        spec = self._build(RunSpec, tree, ())
        assert isinstance(spec, RunSpec)
        for place, section in self._partial:
            for validator in type(section).__pydantic_decorators__.model_validators.values():
                if validator.info.mode == "after" and section is not spec:
                    yield from self._lines(place, lambda: _raised(validator.func, section))  # noqa: B023 - run at once
        for check in spec.checks():
            yield from self._lines((), check)

    def _build(self, model: type[SpecModel], tree: Mapping[str, Any], place: Place) -> SpecModel:
        values: dict[str, Any] = {}
        missing: list[str] = []
        tree = model.with_default_kinds(tree)
        for name, field in model.model_fields.items():
            here = (*place, name)
            if here in self._wrong or (name not in tree and field.is_required()):
                missing.append(name)
            elif name not in tree:
                values[name] = field.get_default(call_default_factory=True)
            elif not any(other[: len(here)] == here for other in self._wrong):
                kind: Any = Annotated[field.annotation, field]
                values[name] = TypeAdapter(kind).validate_python(tree[name])
            elif (member := _member(model, name, tree[name])) is not None:
                values[name] = self._build(member, tree[name], here)
            else:
                missing.append(name)
        made = model.model_construct(None, **values)
        for name in missing:
            made.__dict__.pop(name, None)
        self._left_out.update((model, name) for name in missing)
        self._partial.append((place, made))
        return made

    def _lines(self, place: Place, check: Any) -> Iterator[Mistake]:
        """Yields what a check reports before it reads a key that was left out."""
        try:
            for text in check():
                yield Mistake(place, text)
        except AttributeError as error:
            if (type(error.obj), error.name) not in self._left_out:
                raise  # an error in the check itself


def _member(model: type[BaseModel], name: str, value: Any) -> type[SpecModel] | None:
    """Returns the model of a section; None for a list, and for a kind that is not known."""
    if not isinstance(value, Mapping):
        return None
    members = [member for member in models_at((model,), name) if issubclass(member, SpecModel)]
    if len(members) > 1:
        members = [member for member in members if kind_of(member) == value.get(KIND)]
    return members[0] if len(members) == 1 else None


def _raised(validator: Any, section: SpecModel) -> Iterator[str]:
    try:
        validator(section)
    except ValueError as error:
        yield from str(error).splitlines()
