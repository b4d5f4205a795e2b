"""Puts numbers of things into words, for messages of all layers. Consumes a number and a singular; produces text."""

from __future__ import annotations


def many(count: float, what: str, then: str = "", of_one: str = "") -> str:
    """Returns a number of things, such as 1 run, 3 crashes or 1,000 entries.

    what: one of them; its last word gets the ending of the plural.
    then: what follows in the plural, such as a verb.
    of_one: what follows if it is one.
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:,g}"
    named = what if count == 1 else _plural(what)
    follows = of_one if count == 1 else then
    return " ".join(part for part in (number, named, follows) if part)


def _plural(what: str) -> str:
    if what.endswith(("s", "sh", "ch", "x")):
        return f"{what}es"
    if what.endswith("y") and what[-2:-1] not in "aeiou":
        return f"{what[:-1]}ies"
    return f"{what}s"
