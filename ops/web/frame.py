"""Renders pages with their common parts: the user, the run, its tabs, and the actions that its state allows.

Consumes a request and the application's context; produces HTML responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from db.core.errors import RunNotFound
from flows.branching.branches import BEFORE_FIRST, PHASES, RECOVER, iteration_of
from flows.members.tags import Family
from ops.people.roles import Person
from ops.presentation.columns import Columns, Row
from ops.presentation.words import phase_name
from ops.queries.run_list import DRIVEN, ListedRun, find_line
from ops.web.access import session_person
from ops.web.context import Context, Served
from ops.web.templating import make_templates
from yatt_core.workload_kinds import parts_in

TABS = (
    ("", "Run"),
    ("spec", "Spec"),
    ("devices", "Devices"),
    ("rollouts", "Rollouts"),
    ("checkpoints", "Checkpoints"),
    ("evaluations", "Evaluations"),
    ("faults", "Faults"),
    ("logs", "Logs"),
    ("lineage", "Lineage"),
)
ALL_PHASES = tuple(dict.fromkeys((*BEFORE_FIRST, *PHASES, RECOVER)))
TEMPLATES = make_templates()


@dataclass(frozen=True, slots=True)
class Possible:
    """The actions that a run's state allows."""

    stop: bool
    checkpoint: bool
    try_now: bool
    resume: bool
    retry: bool
    rollback: bool
    fork: bool
    settings: bool
    archive: bool
    delete: bool


def possible(run: ListedRun) -> Possible:
    """Returns the actions that a run's state allows: a stop, a checkpoint or a try needs a driver; all
    others but a fork, that there is none.

    archive, delete: archiving and deleting check the rest themselves.
    """
    driven = run.driver == DRIVEN
    return Possible(
        stop=driven and run.desired_state != "stop",
        checkpoint=driven,
        try_now=driven and run.state == "waiting",
        resume=not driven and run.iteration < run.target_iterations,
        retry=not driven and run.state == "failed",
        rollback=not driven and run.iteration > 0,
        fork=run.iteration >= 0,
        settings=not driven,
        archive=not driven and run.iteration >= 0,
        delete=not driven,
    )


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit to a page.

    person: who is signed in with this browser; None for a visitor who is not signed in.
    """

    request: Request
    served: Context
    person: Person | None

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """Renders a page."""
        person = self.person
        who = {
            "user": person and person.name,
            "role": person and person.role,
            "may": frozenset() if person is None else person.permissions,
        }
        return TEMPLATES.TemplateResponse(self.request, template, {**who, **values}, status_code=status)

    def render_list(
        self, title: str, columns: Columns[Row], rows: Sequence[Row], empty: str, trouble: str = ""
    ) -> Response:
        """Renders a page that is one list.

        empty: what it says without a row; commands are between backticks.
        trouble: why the rows are not known; empty if they are.
        """
        return self.render("list.html", title=title, columns=columns, rows=rows, empty=empty, trouble=trouble)

    def render_run(self, template: str, run: ListedRun, tab: str, **values: Any) -> Response:
        """Renders one of a run's pages."""
        return self.render(template, **self.about(run), tab=tab, tabs=TABS, out_of_band=False, **values)

    def about(self, run: ListedRun) -> Mapping[str, Any]:
        """Returns the values for the header of a run's pages."""
        can = possible(run)
        newest = self.served.ledger.browse.faults(run.id, 1) if can.retry else []
        failed_phase = newest[0].phase if newest else ""
        # Of a phase that is collected before its turn, the attempt itself says which iteration it was at.
        ahead = newest[0].iteration if newest and newest[0].iteration > run.iteration else None
        spec = self.served.ledger.runs.revision(run.id).spec
        sft = spec.get("sft") is not None
        return {
            "run": run,
            "can": can,
            "failed_phase": failed_phase,
            "retry_iteration": iteration_of(run.iteration, failed_phase) if ahead is None else ahead,
            "sft": sft,
            "language": parts_in(spec).language_model,
            "phase_choices": [(phase, phase_name(phase, sft)) for phase in ALL_PHASES],
            "done": self.done,
        }

    @property
    def done(self) -> str:
        """The message about the action that led to this page; empty if there was none."""
        return DONE.get(self.request.query_params.get("done", ""), "")

    def has_sft(self, run: str) -> bool:
        """Returns True if the run's spec has supervised fine-tuning."""
        return self.served.ledger.runs.revision(run).spec.get("sft") is not None

    def find(self, run: str) -> ListedRun:
        """Finds a run by its full id. Raises `RunNotFound`."""
        return find_line(self.served.ledger, run)


DONE = {
    "stop": "The run was asked to stop; it will stop at its next safe point.",
    "checkpoint": "A checkpoint was asked for; it is taken after the current iteration, and the run goes on.",
    "try-now": "The driver looks at once whether what it waits for is back.",
    "start": "The run was created, and its driver was started; output goes to resume.log in the run's folder.",
    "resume": "A driver was started; it appears here once it has the lease.",
    "retry": "The phase's retry budget was restored, and a driver was started.",
    "rollback": "The run is now on a new branch. Resume it to continue.",
    "fork": "The fork was created; this is its page. Resume it to start it.",
    "settings": "The settings were changed, as a new revision of the spec. Resume the run to continue.",
    "verify": "The checkpoint was verified; the result is in the table.",
    "promote": "The alias was moved.",
    "archive": "The run was archived; `archived` in its audit chain says what was deleted.",
    "delete": "The run was deleted; the ledger keeps a record of it.",
    "delete-elsewhere": "The run was deleted. W&B or a shared TensorBoard folder still has it: YATT removes nothing there.",
    "delete-left": "The run was deleted, but some files remain; run `yatt rm` again. `yatt runs --deleted` lists the run.",
    "note": "The note was saved.",
    "tags": "The tags were changed.",
}
"""The message shown after an action, by the action's name in the URL."""


def visit(request: Request, served: Served) -> Visit:
    """Returns the visit with the signed-in user."""
    return Visit(request, served, session_person(served, request))


Visited = Annotated[Visit, Depends(visit)]


def record_behind(visit: Visit, family: Family, run_id: str) -> str:
    """Returns the record, such as a soup, to which a page's run belongs. Raises `RunNotFound` if it belongs to none."""
    ledger = visit.served.ledger
    run = ledger.runs.find(run_id).id
    record = family.record_of(ledger, run)
    if record is None:
        raise RunNotFound(f"run {run!r} belongs to no {family.kind}")
    return record
