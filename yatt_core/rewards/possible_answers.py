"""Says whether any response can have a reference answer, in the form in which `exact_match` reads a response.

Consumes a reference answer and the options. Produces the reason if no response can score, as with `12 apples` where the last
number is read. Takes time linear in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from yatt_core.rewards.builtin import ExactMatch, matches
from yatt_core.rewards.extraction import GROUP, matches_any
from yatt_core.rewards.written_numbers import number_alone, with_plain_numbers

SPACES = ("", " ", "\n")
"""White space that an expression may demand around an answer; it is not part of what is compared."""
_FLAGS = re.compile(r"\(\?([imsU]+)(?:-[imsU]+)?[:)]")
_PIECE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]|[()]", re.DOTALL)
"""What may contain a parenthesis in an RE2 expression: quoted text, an escaped character, a class; or a parenthesis."""


def why_never_matched(expected: str, options: ExactMatch) -> str:
    """Returns why no response scores against a reference answer; empty if one does.

    expected: the answer as `of_references` returns it.
    """
    spellings = [one for one in _spellings(expected) if matches(one, expected, options)]
    match options.extract:
        case "whole":
            return ""
        case "pattern":
            if _group_allows(options, spellings):
                return ""
            group = _up_to_its_end((options.pattern or "").partition(GROUP)[2])
            return (
                f"the reference answer {expected!r:.100} is never matched: the pattern's {GROUP}{group}) cannot be that"
            )
        case "tag":
            form = f"<{options.tag}>{{}}</{options.tag}>"
        case "boxed":
            form = r"\boxed{{{}}}"
        case "last_number":
            form = "{}"
    if _is_scored(expected, [form.format(one) for one in spellings], options):
        return ""
    response = form.format(expected)
    read = options.of_response(response, response)
    found = "nothing" if read is None else repr(read)
    return (
        f"the reference answer {expected!r:.100} is never matched: extract: {options.extract} reads {found:.100} in a response "
        "that gives it"
    )


def _spellings(expected: str) -> tuple[str, ...]:
    """Returns an answer in spellings that may be equal to it."""
    others = [expected, expected.lower(), expected.upper(), expected.capitalize(), with_plain_numbers(expected)]
    number = number_alone(expected)
    if number is not None:
        others += [f"{number[0]:f}", f"{number[0]:,f}"]
    return tuple(dict.fromkeys(others))


def _is_scored(expected: str, responses: Iterable[str], options: ExactMatch) -> bool:
    read = (options.of_response(response, response) for response in responses)
    return any(given is not None and matches(given, expected, options) for given in read)


def _group_allows(options: ExactMatch, spellings: Sequence[str]) -> bool:
    """Returns whether the group of the options' pattern can be an answer; True for a pattern that is not understood."""
    pattern = options.pattern or ""
    before, _, behind = pattern.partition(GROUP)
    group = _up_to_its_end(behind)
    if group is None:
        return True
    flags = "".join(dict.fromkeys("".join(_FLAGS.findall(before))))
    try:
        return matches_any(
            f"(?{flags}:{group})" if flags else group,
            [left + answer + right for answer in spellings for left in SPACES for right in SPACES],
        )
    except ValueError:
        return True


def _up_to_its_end(text: str) -> str | None:
    """Returns an RE2 expression up to the parenthesis that closes the group in which it begins; None if none does."""
    depth = 1
    for piece in _PIECE.finditer(text):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if not depth:
            return text[: piece.start()]
    return None
