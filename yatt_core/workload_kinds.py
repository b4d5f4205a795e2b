"""Kinds of workloads that have names in a spec, without what a spec needs to be read: commands name them at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LANGUAGE = "language"
"""A language model is trained, as the other sections of a spec describe it."""
CUSTOM = "custom"
"""A class of the user's own, in a file."""


def trains_language(spec: Mapping[str, Any]) -> bool:
    """Returns True if a run trains a language model.

    spec: its spec as plain values; one without a workload, as of earlier versions, trains one.
    """
    return bool(spec.get("workload", {}).get("kind", LANGUAGE) == LANGUAGE)
