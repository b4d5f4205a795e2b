"""The template environment: Jinja with escaping always on, whatever a template's name, and filters that format figures.

Consumes the dashboard's templates and static files; produces the environment that all pages share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.templating import Jinja2Templates

from flows.schedule.parameters import parameters_text
from ops.integrations.promotion import LONGEST_REASON
from ops.presentation.conversation import prompt_messages, response_messages
from ops.presentation.placement_words import HOW, role_name, roles_text
from ops.presentation.words import duration, phase_name, size

DASHBOARD = Path(__file__).resolve().parent.parent
STATIC = DASHBOARD / "static"
STATIC_PATH = "/static"
NOTHING = "–"


def make_templates() -> Jinja2Templates:
    """Creates the templates. Undefined names are errors, and all text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(DASHBOARD / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"static": static, "run_url": run_url, "longest_reason": LONGEST_REASON}
    environment.filters |= {
        "ago": ago,
        "duration": lambda seconds: NOTHING if seconds is None else duration(max(0.0, seconds)),
        "size": lambda count: NOTHING if count is None else size(count),
        "figure": figure,
        "evidence": evidence,
        "share": share,
        "moment": moment,
        "window_parameters": parameters_text,
        "phase": phase_name,
        "sources": lambda sources: json.dumps([asdict(source) for source in sources]),
        "role": role_name,
        "roles": roles_text,
        "how": HOW.__getitem__,
        "prompt_messages": prompt_messages,
        "response_messages": response_messages,
    }
    return Jinja2Templates(env=environment)


@cache
def static(name: str) -> str:
    """Returns a static file's address with part of its digest, so that browsers may cache it and still see changes."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()
    return f"{STATIC_PATH}/{name}?v={digest[:12]}"


def run_url(run: str, page: str = "", **query: object) -> str:
    """Returns the address of one of a run's pages; query values that are None are left out."""
    path = "/".join(["/runs", quote(run, safe=""), *filter(None, [page])])
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def figure(value: float | None) -> str:
    """Formats a number with four significant digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def evidence(value: object) -> str:
    """Returns a plain value as a text: names with their values, and values, separated by commas."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {evidence(each)}" for name, each in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(evidence(each) for each in value) or NOTHING
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return figure(value)
    return str(value)


def share(value: float | None) -> str:
    """Formats a fraction as a percentage."""
    return NOTHING if value is None else f"{value:.1%}"


def ago(seconds: float | None) -> str:
    """Formats an age."""
    return NOTHING if seconds is None else f"{duration(max(0.0, seconds))} ago"


def moment(milliseconds: int | None, seconds: bool = True) -> Markup:
    """Formats a time as a `<time>` element.

    milliseconds: since 1970.
    """
    if milliseconds is None:
        return Markup(NOTHING)
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    said = at.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="milliseconds"), said)
