"""What data sets write in place of an answer that they do not have. Consumes a text. Produces whether it is such a remark."""

from __future__ import annotations

import re

_NON_ANSWER = re.compile(
    r"proof|n/a|nan|tbd|todo|not ?(?:found|available|provided|given|applicable)|no (?:answer|solution provided)|\?+"
    r"|(?:please )?(?:see|refer to|cf) (?:the )?(?:solutions?|proof|answers?|explanation|above|below|text|book|figure|image)"
    r"(?: (?:above|below))?"
)
_FRAME = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{([^{}]*)\}")


def is_non_answer(text: str) -> bool:
    """Returns whether a text says that there is no answer. `none` and `unknown` may be answers."""
    plain = _FRAME.sub(lambda frame: frame[1], text).strip().strip("()[].$!").casefold()
    return _NON_ANSWER.fullmatch(" ".join(plain.split())) is not None
