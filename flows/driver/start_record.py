"""Records how long a session's start took: from the command until its work begins."""

from __future__ import annotations

import psutil

from flows.driver.actors_start import ActorsStart
from flows.driver.context import RunContext
from flows.run.starts import SESSION_READY, Machine, SessionStart
from yatt_core.planning.start import StartParts, count_actors, engines_of

CLOCK_ERROR = 1.0
"""Seconds by which the start of a process may be later than it seems: Linux tells the boot time, from which it counts, in whole
seconds. A command takes longer to create a run."""


def record_start(context: RunContext, start: ActorsStart, services: tuple[str, ...], *, is_usual: bool) -> None:
    """Appends a link about a start that is over to the audit chain.

    services: those that only this run uses.
    is_usual: whether a command has begun the session, not a schedule, and whatever it needs was there.
    """
    began = psutil.Process().create_time()
    created_at = context.ledger.runs.find(context.run).created_at / 1000
    over = SessionStart(
        seconds=context.clock.time_ms() / 1000 - began,
        is_new=is_usual and created_at >= began + CLOCK_ERROR,
        machine=Machine.this(),
        parts=StartParts(
            services=services,
            engines=engines_of(context.spec),
            actors=count_actors(start.created),
            parameters=start.inputs.parameters,
            prompts=start.inputs.prompts,
        ),
    )
    body = {"term": context.fence.term, **over.to_json()}
    context.ledger.events.append(context.run, SESSION_READY, body, context.fence)
