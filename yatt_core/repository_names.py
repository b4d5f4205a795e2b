"""Names of repositories on the Hugging Face Hub. Pure."""

from __future__ import annotations

import re

LONGEST_NAME = 96
"""Characters of a repository's name, as the Hub allows."""
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
REPOSITORY = rf"(?:{_NAME}/)?{_NAME}"


def is_repository(name: str) -> bool:
    """Returns True if a text can be the name of a repository of an organisation or a person."""
    return "/" in name and len(name) <= LONGEST_NAME and re.fullmatch(REPOSITORY, name) is not None
