"""Equality of mathematical expressions where math-verify is too generous, or too strict.

Consumes what math-verify has parsed, or plain numbers. Produces whether two of them are equal. Numbers that are small are
compared by their first digits, not only by decimal places; expressions with roots are compared by their values.
"""

from __future__ import annotations

import cmath
import math
from decimal import Decimal
from typing import Any

from sympy import Basic, Expr, FiniteSet, Interval, Pow, Rational, Tuple, log
from sympy.core.expr import UnevaluatedExpr

POINTS = tuple(Rational(*one) for one in ((3, 7), (-5, 11), (17, 6), (-23, 9), (1, 13), (101, 8), (-7, 4), (31, 3)))
"""Values of the first variable at which expressions are compared; further ones are shifted."""
SHIFT = Rational(29, 17)
LEAST_POINTS = 3
MOST_VARIABLES = 4
LARGEST = 80
"""Numbers of points at which both must have a value, of variables, and of operations in an expression."""
DIGITS = 20
FARTHEST = 9999
"""Exponents of ten beyond which plain numbers are not subtracted."""
SMALL = 1e-12
"""Relative difference of values that are equal."""
HUNDREDTH = UnevaluatedExpr(Rational(1, 100))
"""How math-verify writes a percent sign."""


def near(one: Any, other: Any, decimals: int) -> bool:
    """Returns whether two numbers are equal; what is no number is taken to be equal.

    Plain numbers (`Decimal`) have to be equal if both are integers, else up to half a unit of the last of the decimal
    places. In any case, the relative difference is at most ten of these units: 0.0000001 is not 0.0000002.
    """
    if isinstance(one, Decimal):
        return _near_decimals(one, other, decimals)
    if not isinstance(one, Basic) or not isinstance(other, Basic) or one == other:
        return True
    if isinstance(one, Tuple | FiniteSet | Interval):
        return len(one.args) != len(other.args) or all(
            any(near(mine, its, decimals) for its in other.args) for mine in one.args
        )
    if one.has(HUNDREDTH) or other.has(HUNDREDTH):
        return True
    values = [_value(expression) for expression in (one, other)]
    if values[0] is None or values[1] is None:
        return True
    return abs(values[0] - values[1]) <= _tolerance(decimals) * max(abs(values[0]), abs(values[1]))


def equal_everywhere(one: Any, other: Any) -> bool:
    """Returns whether two expressions with roots or logarithms have the same real values at some points.

    Where only one of them has a real value, they differ. Simplification fails on such expressions, because it does not
    know which values the variables may have.
    """
    if not (isinstance(one, Expr) and isinstance(other, Expr)):
        return False
    symbols = sorted(one.free_symbols, key=str)
    if one.free_symbols != other.free_symbols or not 0 < len(symbols) <= MOST_VARIABLES:
        return False
    if not (_has_roots(one) or _has_roots(other)) or max(one.count_ops(), other.count_ops()) > LARGEST:
        return False
    compared = 0
    for point in POINTS:
        values = {symbol: point + number * SHIFT for number, symbol in enumerate(symbols)}
        found = [_real_value(expression, values) for expression in (one, other)]
        if found[0] is None and found[1] is None:
            continue
        if found[0] is None or found[1] is None or not math.isclose(found[0], found[1], rel_tol=SMALL):
            return False
        compared += 1
    return compared >= LEAST_POINTS


def _near_decimals(one: Decimal, other: Decimal, decimals: int) -> bool:
    if one == other:
        return True
    sizes = [value.adjusted() for value in (one, other)]
    are_integers = all(value == value.to_integral_value() for value in (one, other) if abs(value.adjusted()) < FARTHEST)
    if are_integers or abs(sizes[0] - sizes[1]) > 1 or max(map(abs, sizes)) >= FARTHEST:
        return False
    difference = abs(one - other)
    most = Decimal(_tolerance(decimals)) * max(abs(one), abs(other))
    return difference <= Decimal(5).scaleb(-decimals - 1) and difference <= most


def _tolerance(decimals: int) -> float:
    return 10.0 ** (1 - decimals)


def _has_roots(expression: Expr) -> bool:
    return expression.has(log) or any(not power.exp.is_integer for power in expression.atoms(Pow))


def _real_value(expression: Expr, values: dict[Any, Any]) -> float | None:
    """Returns the value of an expression; None if it has no real one."""
    value = _value(expression.doit().subs(values))
    return None if value is None or abs(value.imag) > SMALL * abs(value) else value.real


def _value(expression: Basic) -> complex | None:
    """Returns the value of an expression without variables; None if it has none, or a too large one."""
    if not isinstance(expression, Expr) or not expression.is_number:
        return None
    try:
        value = complex(expression.evalf(DIGITS))
    except (TypeError, ValueError, OverflowError):
        return None
    return value if cmath.isfinite(value) else None
