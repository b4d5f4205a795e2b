"""Prompts made from several keys of a row by a Jinja template, which can compute nothing but text.

Consumes the template of a spec and rows. Produces text, the same for the same row. Raises `ValueError` for a template that
cannot be compiled, and `DataError` for a row that lacks a key or whose text is too long. Templates run in Jinja's immutable
sandbox, without loaders, without what is random, and without what makes a long text from a number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, TemplateError, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from yatt_core.errors import DataError
from yatt_core.json_text import object_in

MOST_CHARACTERS = 16 << 20
"""Length of the longest prompt that a template may make."""
ROW = "row"
"""The name of the whole row in templates, for keys that are no identifiers: `{{ row["Problem Statement"] }}`."""
_UNFIT_FILTERS = ("random", "center", "format", "indent", "wordwrap", "xmlattr")
_UNFIT_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map"})
_KEPT_GLOBALS = ("range", "dict", "namespace")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which keys of objects take precedence over their methods."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the value under a key of an object or of the JSON text of one, or an attribute."""
        inside = object_in(obj)
        if inside is not None and attribute in inside:
            return inside[attribute]
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns an element, or the value under a key of an object or of the JSON text of one."""
        inside = object_in(obj) if isinstance(argument, str) else None
        if inside is not None and argument in inside:
            return inside[argument]
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Returns the result for numbers; a text times a number could be of any length, and so could a power."""
        if operator == "**" or not all(isinstance(value, int | float) for value in (left, right)):
            raise SecurityError(f"the operator {operator} is for numbers only, and there are no powers")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Returns False also for the methods that make texts of any length."""
        return attr not in _UNFIT_METHODS and super().is_safe_attribute(obj, attr, value)


@functools.cache
def _environment() -> Environment:
    environment = _Sandbox(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    for name in _UNFIT_FILTERS:
        environment.filters.pop(name, None)
    environment.globals = {name: environment.globals[name] for name in _KEPT_GLOBALS}
    return environment


@functools.lru_cache(maxsize=64)
def _compiled(text: str) -> Template:
    return _environment().from_string(text)


def check_template(text: str) -> None:
    """Raises `ValueError` for a template that cannot be compiled, or that uses no key of a row."""
    try:
        _compiled(text)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise ValueError(f"is not a Jinja template: {f'line {line}: ' if line else ''}{error}") from None
    if not template_keys(text):
        raise ValueError("uses no key of the row; expected one, such as {{ question }}")


@functools.lru_cache(maxsize=64)
def template_keys(text: str) -> tuple[str, ...]:
    """Returns the keys of a row that a template uses, in alphabetical order."""
    tree = _environment().parse(text)
    known = set(_environment().globals)
    names = meta.find_undeclared_variables(tree) - known
    by_row = {
        item.arg.value
        for item in tree.find_all(nodes.Getitem)
        if isinstance(item.node, nodes.Name) and item.node.name == ROW and isinstance(item.arg, nodes.Const)
    }
    by_row |= {
        item.attr
        for item in tree.find_all(nodes.Getattr)
        if isinstance(item.node, nodes.Name) and item.node.name == ROW
    }
    return tuple(sorted((names - {ROW}) | by_row if by_row else names))


def render_row(text: str, entry: Mapping[str, Any]) -> str:
    """Returns the text that a template makes from a row. Raises `DataError`."""
    pieces = list[str]()
    length = 0
    try:
        for piece in _compiled(text).generate({ROW: entry, **entry}):
            length += len(piece)
            if length > MOST_CHARACTERS:
                raise DataError(f"makes a prompt of more than {MOST_CHARACTERS:,} characters, the maximum")
            pieces.append(piece)
    except UndefinedError as error:
        keys = ", ".join(entry) or "none"
        raise DataError(f"{error.message}; the row's keys: {keys}") from None
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"cannot be rendered: {error}") from None
    return "".join(pieces)
