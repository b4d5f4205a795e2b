"""References between jobs in the changes to a spec, such as `model.path=${jobs.sft.model}`. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

_BRACES = re.compile(r"\$\{([^{}]*)\}")
_REFERENCE = re.compile(r"\$\{jobs\.([a-z0-9-]+)\.([a-z_]+)\}")


def referenced(text: str) -> Iterator[tuple[str, str]]:
    """Yields the jobs and products that a text refers to."""
    for match in _REFERENCE.finditer(text):
        yield match[1], match[2]


def misspelled(text: str, jobs: Container[str]) -> Iterator[tuple[str, str]]:
    """Yields what looks like a reference and is none, with what is meant; the latter is empty if that is not clear.

    jobs: the names of the jobs.
    """
    for match in _BRACES.finditer(text):
        if _REFERENCE.fullmatch(match[0]):
            continue
        first, *others = match[1].strip().split(".")
        if first in jobs:
            others = [first, *others]
        elif not difflib.get_close_matches(first.lower(), ["jobs"]):
            continue  # braces of another kind, such as a formula's
        meant = f"${{jobs.{'.'.join(others)}}}"
        yield match[0], meant if _REFERENCE.fullmatch(meant) else ""


def resolved(text: str, outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a text with what earlier jobs produced in place of the references.

    outputs: by job, what it produced by name.
    """
    return _REFERENCE.sub(lambda match: str(outputs[match[1]][match[2]]), text)
