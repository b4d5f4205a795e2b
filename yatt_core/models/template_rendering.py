"""Renders conversations with the chat template of a tokenizer, the same under every version of transformers.

Consumes messages, a tokenizer's template and the template's variables. Produces the text that a model reads. The template gets
exactly the messages that are passed: transformers 5.24 drops keys that are None from them, copies thoughts into further keys and
replaces functions among the variables by a text, so that an upgrade would change prompts without a word. What templates may use
(filters, functions, the tag `generation`) is what transformers documents. A template is code of the model's author, and runs in
jinja2's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Never

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

TEMPLATE_DATE = "26 Jul 2024"
"""The date given to chat templates that use one; it is constant, so that prompts are the same every day."""


def render_messages(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    generates: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Returns messages as the tokenizer's chat template writes them.

    tools: descriptions of tools in the form of chat templates; None if there are none.
    generates: whether the beginning of the assistant's next turn follows.
    variables: of the template, beside the names of special tokens, which they replace, and a constant date.

    Raises `ValueError` if the tokenizer has no template, jinja2's `TemplateError` if the template is none or rejects the
    messages, and whatever else a template does with a message in a form that it does not take.
    """
    template = compiled(tokenizer.get_chat_template(tools=tools))
    own = {"documents": None, "date_string": TEMPLATE_DATE, "strftime_now": _constant_date}
    return template.render(
        messages=messages,
        tools=tools,
        add_generation_prompt=generates,
        **(tokenizer.special_tokens_map | own | dict(variables or {})),
    )


@lru_cache(maxsize=64)
def compiled(template: str) -> Template:
    """Returns a chat template that can be rendered. Raises jinja2's `TemplateError` if it is none."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _GuardedNamespace
    return environment.from_string(template)


class _GenerationTag(Extension):
    """Reads `{% generation %}...{% endgeneration %}`, by which templates mark an assistant's text, as what it contains."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _GuardedNamespace(Namespace):
    """jinja2's `namespace`, whose names cannot be those by which Python's objects work."""

    def __init__(*args: Any, **names: Any) -> None:
        # As jinja2 writes it: a template may name an attribute "self".
        own, *rest = args
        attributes = dict(*rest, **names)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(own, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template has the name {name!r}; names begin with a letter")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes what is special in HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> Never:
    raise TemplateError(message)


def _constant_date(_: str) -> str:
    return TEMPLATE_DATE
