"""Tools included in YATT, each an entry point of the group `yatt.tools`.

A tool takes a call's arguments and the spec's options as keyword arguments, and returns a text or another JSON
value.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

Number = int | float

_BINARY: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
    }
)


def calculator(expression: str) -> str:
    """Returns the value of an arithmetic expression of numbers, parentheses and + - * / // % **.

    Integer results have no decimal point. Raises `ValueError` for anything else, and `ArithmeticError` for an
    expression without a value.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:  # the wording of its message differs between versions of Python
        raise ValueError("this is no expression") from None
    value = _value(tree.body)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            value = _BINARY[type(op)](_value(left), _value(right))
            if isinstance(value, complex):
                raise ValueError("the value is no real number")
            return value
        case _:
            raise ValueError("an expression has numbers, parentheses and + - * / // % ** alone")
