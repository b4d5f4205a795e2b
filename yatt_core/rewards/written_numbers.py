"""Numbers as people and models write them: pure functions of text, in linear time.

Consumes a text. Produces numbers in decimal digits: without a plus, separators of thousands, currency and percent signs,
and with `-` for each of the dashes that stand for a minus.
"""

from __future__ import annotations

import re
from collections import deque
from decimal import Decimal, InvalidOperation

DASHES = "-\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d"
"""What is written for a minus: hyphens, the figure dash, the en dash and the sign itself."""
SIGN = rf"[+{re.escape(DASHES)}]"
"""An expression for a plus or a minus."""
_CURRENCY = r"\\?[$€£¥]\s?"
_SEPARATOR = r"(?:,\\!|\{,\}|\\[,!]|[,\u2009\u202f\u00a0])"
"""Between thousands: a comma, also in LaTeX's spellings, or a narrow space."""
_THOUSANDS = rf"[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+(?![0-9])"
_DIGITS = rf"(?:(?:{_THOUSANDS}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_EXPONENT = rf"(?:[eE]{SIGN}?[0-9]+(?!\.?[0-9A-Za-z]))?"
# A dash directly behind a digit, a letter or a bracket is an operator or a hyphen: the 5 of `8-5` is not negative.
_NUMBER = re.compile(rf"(?:(?<![\w)\]}}%])(?P<sign>{SIGN})(?:{_CURRENCY})?)?(?P<digits>{_DIGITS}{_EXPONENT})")
_ALONE = re.compile(
    rf"\s*(?:{_CURRENCY})?(?P<sign>{SIGN})?(?:{_CURRENCY})?(?P<digits>{_DIGITS}{_EXPONENT})"
    r"(?P<percent>\s?\\?%)?(?:\\?\$)?\.?\s*"
)
_SEPARATORS = re.compile(_SEPARATOR)
_IN_DIGITS = re.compile(rf"(?<=[0-9]){_SEPARATOR}(?=[0-9]{{3}}(?![0-9]))")
_NUMERAL = re.compile(
    r"\s*(?P<opened>\()?(?P<digits>(?=[A-Za-z]*[0-9])[0-9A-Za-z]+)(?(opened)\))"
    r"_(?P<braced>\{)?(?P<base>[0-9]{1,2})(?(braced)\})\s*"
)
_LONGEST_NUMERAL = 1_000
_DASH = str.maketrans(dict.fromkeys(DASHES, "-"))


def last_number(text: str) -> str | None:
    """Returns the last number of a text; None if there is none."""
    found = deque(_NUMBER.finditer(text), maxlen=1)
    return _plain(found[0]) if found else None


def number_alone(text: str) -> tuple[Decimal, bool] | None:
    """Returns the value of a text that is nothing but a number, and whether it is a percentage; None for other texts.

    A percentage's value is that of the number before the sign.
    """
    found = _ALONE.fullmatch(text)
    if found is None:
        return None
    try:
        return Decimal(_plain(found)), found["percent"] is not None
    except InvalidOperation:  # its exponent is too large
        return None


def same_number(one: str, other: str) -> bool:
    """Returns whether two texts are the same number, however they are written; a percent sign makes no difference."""
    found = number_alone(one)
    others = number_alone(other)
    return found is not None and others is not None and found[0] == others[0]


def numeral(text: str) -> tuple[int, int] | None:
    r"""Returns the value and the base of a text that is nothing but a numeral with its base as a subscript; None for other texts.

    `1011_2`, `(1011)_{2}` and `4A_{16}` are numerals; `12_8a`, `x_2` and `19_8` are none.
    """
    found = _NUMERAL.fullmatch(text)
    if found is None or len(found["digits"]) > _LONGEST_NUMERAL:
        return None
    base = int(found["base"])
    try:
        return (int(found["digits"], base), base) if base else None
    except ValueError:  # a digit is too large, or there is no such base
        return None


def with_plain_numbers(text: str) -> str:
    r"""Returns a text with plain minus signs, without signs of currency before digits, and with commas between thousands.

    `\$18` becomes `18`, and `8{,}000` becomes `8,000`. Dollar signs around mathematics are kept.
    """
    text = text.translate(_DASH)
    text = re.sub(r"\\\$|[€£¥]\s?(?=[0-9.])", "", text)
    if text.count("$") == 1:
        text = text.replace("$", "")
    return _IN_DIGITS.sub(",", text)


def _plain(found: re.Match[str]) -> str:
    sign = (found["sign"] or "").translate(_DASH)
    digits = _SEPARATORS.sub("", found["digits"]).translate(_DASH).replace("e+", "e").replace("E+", "E")
    return f"{'-' if sign == '-' else ''}{digits}"
