"""References between jobs in the changes to a spec, such as `model.path=${jobs.sft.model}`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCE = re.compile(r"\$\{jobs\.([a-z0-9-]+)\.([a-z_]+)\}")


def referenced(text: str) -> Iterator[tuple[str, str]]:
    """Yields the jobs and products that a text refers to."""
    for match in _REFERENCE.finditer(text):
        yield match[1], match[2]


def resolved(text: str, outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a text with what earlier jobs produced in place of the references.

    outputs: by job, what it produced by name.
    """
    return _REFERENCE.sub(lambda match: str(outputs[match[1]][match[2]]), text)
