"""The names that a workload's metrics may have: those that every tracker takes.

Consumes a name. Produces an error for one that some tracker would refuse, or would take for another: MLflow, whose files and
pages take `/` for a folder, refuses characters other than those of `_NAME`, and its databases keep 250 of them.
"""

from __future__ import annotations

import re

from yatt_core.errors import ConfigurationError

LONGEST_NAME = 200
"""Characters of a name, which leaves room for what YATT puts before it."""
_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[\w.\-: ]+(?:/[\w.\-: ]+)*")
ALLOWED = (
    "letters and digits of any script, _ - . : and spaces, in parts between / that are neither empty nor . nor .., at most "
    f"{LONGEST_NAME} characters"
)


def require_metric_name(name: str, place: str) -> None:
    """Raises `ConfigurationError` for a name that not all trackers take.

    place: the method that has returned the metric, for messages.
    """
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{place} returned a metric called {name!r:.220}, which trackers refuse; expected {ALLOWED}"
        )
