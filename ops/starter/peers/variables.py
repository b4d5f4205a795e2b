"""Replaces variables and arithmetic in the text of a shell's word.

Consumes a text and the values of variables. Produces the text; what is not known stays as it is.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?]+)(?:\[[@*]\])?(?::?-(.*))?", re.DOTALL)
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
LARGEST = 10**15
"""Largest number that arithmetic of a script yields here."""


def replaced(text: str, values: Mapping[str, str]) -> str:
    """Returns a text with its variables replaced."""
    found = list[str]()
    at = 0
    while at < len(text):
        if text[at] != "$":
            stop = text.find("$", at)
            stop = len(text) if stop < 0 else stop
            found.append(text[at:stop])
        elif text.startswith("$((", at):
            stop = closing(text, at + 1, "(", ")")
            found.append(_computed(text[at:stop], values))
        elif text.startswith("${", at):
            stop = closing(text, at + 1, "{", "}")
            found.append(_braced(text[at:stop], values))
        else:
            name = _NAME.match(text, at + 1)
            stop = at + 1 if name is None else name.end()
            found.append("$" if name is None else values.get(name[0], text[at:stop]))
        at = stop
    return "".join(found)


def variable_of(text: str) -> str | None:
    """Returns the name of the variable that a whole text stands for; None for other texts."""
    found = re.fullmatch(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?\})", text)
    return None if found is None else found[1] or found[2]


def closing(text: str, begin: int, opens: str, closes: str) -> int:
    """Returns the place behind the bracket that closes the one at a place; the text's end if none does."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == opens) - (text[at] == closes)
        if depth == 0:
            return at + 1
    return len(text)


def _braced(text: str, values: Mapping[str, str]) -> str:
    found = _BRACED.fullmatch(text[2:-1])
    if found is None:
        return text
    if found[1] in values:
        return values[found[1]]
    return text if found[2] is None else replaced(found[2].strip('"'), values)


def _computed(text: str, values: Mapping[str, str]) -> str:
    """Returns the result of whole numbers in `$((...))`; the text if it has anything else in it."""
    inner = replaced(text[3:-2], values)
    named = _NAME.sub(lambda found: values.get(found[0], found[0]), inner)
    try:
        number = _number(ast.parse(named.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return text
    return str(number)


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            found = value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            found = _OPERATORS[type(op)](_number(left), _number(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_number(operand)
        case _:
            raise ValueError("no arithmetic of whole numbers")
    if abs(found) > LARGEST:
        raise ValueError("too large")
    return found
