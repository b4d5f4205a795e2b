"""Texts of others as a terminal, a log and a database can take them.

Consumes any text. Produces one in which control characters, with which a terminal would change colours or overwrite what stands
there, and characters that UTF-8 does not have are shown as escape sequences; lines and tabs stay.
"""

from __future__ import annotations

import re

UNSHOWN = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Control characters but for the ends of lines and tabs, and marks that turn the direction of writing: the inside of a pattern's
brackets. Surrogates are not in it, since patterns of JavaScript take them for halves of other characters."""
_UNSHOWN = re.compile(rf"[{UNSHOWN}\ud800-\udfff]")


def printable(text: str) -> str:
    """Returns a text with escape sequences in place of what cannot be shown."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
