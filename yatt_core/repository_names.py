"""Names of repositories on the Hugging Face Hub, by the Hub's own rules. Pure."""

from __future__ import annotations

import re

LONGEST_PART = 96
"""Characters of the name of an organisation or a repository."""
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REFUSED = re.compile(r"--|\.\.|\.git$")


def is_repository(name: str) -> bool:
    """Returns True if a text can be the name of a repository of an organisation or a person, ORGANISATION/NAME."""
    parts = name.split("/")
    return len(parts) == 2 and all(is_part(part) for part in parts)


def is_part(name: str) -> bool:
    """Returns True if a text can be the name of an organisation, or of a repository within it."""
    return len(name) <= LONGEST_PART and _PART.fullmatch(name) is not None and _REFUSED.search(name) is None
