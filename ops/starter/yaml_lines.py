"""Lines of commented YAML whose values are written by the YAML library, so that they are read back as they are.

Consumes keys, values and comments. Produces lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import UNBROKEN, parse_yaml, yaml_text

COLUMN = 42
GAP = "  "
"""Column of the comments after a value, and what separates them from a longer one."""
WIDTH = 118


def entry(indent: int, key: str, value: Any, comment: str = "") -> str:
    """Returns the lines of a key and its value.

    indent: spaces before the key.
    value: a scalar; a text of several lines is a literal block where YAML can give it back.
    comment: behind the value, or above the key of a value with several lines.
    """
    margin = " " * indent
    text = _block(key, value) if isinstance(value, str) and "\n" in value else yaml_text({key: value})
    lines = [f"{margin}{line}" if line else "" for line in text.removesuffix("\n").split("\n")]
    if len(lines) == 1:
        return said(lines[0], comment)
    return "\n".join([*(remark(comment, indent) if comment else ()), *lines])


def said(line: str, comment: str) -> str:
    """Returns a line with a comment, which at least two blanks separate from it."""
    return f"{line}{GAP}".ljust(COLUMN) + f"# {printable(comment)}" if comment else line


def remark(text: str, indent: int = 0) -> Iterator[str]:
    """Yields the lines of a comment that stands alone."""
    margin = " " * indent + "# "
    yield from textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def flow(values: Mapping[str, Any]) -> str:
    """Returns a mapping of plain scalars on one line."""
    return "{" + ", ".join(f"{key}: {scalar(value)}" for key, value in values.items()) + "}"


def scalar(value: Any) -> str:
    """Returns a scalar as YAML writes it."""
    return yaml_text(value).removesuffix("...\n").strip()


def printable(text: str) -> str:
    """Returns a text without line breaks and other characters that cannot stand in a comment."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _block(key: str, text: str) -> str:
    """Returns a text of several lines as a literal block, if it is read back as it is, otherwise in quotes.

    Blank lines at its end would have to stay at the end of the block, where nobody sees them.
    """
    if text.endswith("\n\n") or not text.strip():
        return _dumped({key: DoubleQuotedScalarString(text)})
    block = _dumped({key: LiteralScalarString(text)})
    try:
        same = parse_yaml(block, key) == {key: text} and printable(text.replace("\n", "")) == text.replace("\n", "")
    except ConfigurationError:
        same = False
    return block if same else _dumped({key: DoubleQuotedScalarString(text)})


def _dumped(values: Mapping[str, str]) -> str:
    """Returns the YAML of texts whose types say how they are written."""
    writer = YAML()
    writer.width = UNBROKEN
    stream = StringIO()
    writer.dump(values, stream)
    return stream.getvalue()
