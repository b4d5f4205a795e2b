"""The template environment: Jinja with escaping always on, whatever a template's name, and filters that format figures.

Consumes the templates of all rooms of `ops`, and the static files; produces the environment that all pages share.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.templating import Jinja2Templates

from flows.schedule.parameters import parameters_text
from ops.integrations.promotion import LONGEST_REASON
from ops.presentation.conversation import prompt_messages, response_messages
from ops.presentation.placement_words import HOW, role_name, roles_text
from ops.presentation.words import duration, phase_name, size
from ops.web.formats import NOTHING, ago, evidence, figure, moment, run_url, share
from ops.web.lists import commands, digest, head_cells, on_pages, row_cells, state_badge

WEB = Path(__file__).resolve().parent
STATIC = WEB / "static"
OPS = WEB.parent
TEMPLATE_FOLDERS = (OPS / "dashboard" / "templates", *sorted({file.parent for file in OPS.glob("*/*.html")}))
"""The dashboard's templates, and the rooms with templates beside their modules. No two templates have the same name."""
STATIC_PATH = "/static"


def make_templates() -> Jinja2Templates:
    """Creates the templates. Undefined names are errors, and all text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "static": static,
        "run_url": run_url,
        "longest_reason": LONGEST_REASON,
        "on_pages": on_pages,
        "head_cells": head_cells,
        "row_cells": row_cells,
    }
    environment.filters |= {
        "ago": ago,
        "badge": state_badge,
        "commands": commands,
        "digest": digest,
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
