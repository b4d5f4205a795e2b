"""The pages of one run that read no samples: status, checkpoints, faults, logs and lineage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from db.write.aliases import ALIASES
from db.write.annotations import NOTE_CHARACTERS
from flows.reports.lineage import BranchNode
from flows.reports.measures import measures_in
from ops.dashboard.api import Level, Place
from ops.dashboard.pages.charts import (
    THROUGHPUT,
    Display,
    charts_of,
    chosen_charts,
    curriculum_charts,
    evaluation_charts,
    learning_charts,
    part_charts,
)
from ops.dashboard.pages.pictures import time_parts
from ops.evaluation.drawing import suite_picture
from ops.evaluation.view import EVALUATIONS, suite_histories
from ops.presentation.time_accounts import advice_line
from ops.presentation.words import phase_name
from ops.queries.checkpoints import CHECKPOINTS, MOVES, aliases, checkpoints
from ops.queries.faults import attempt_columns, crash_columns, faults
from ops.queries.lineage import DRIFT, REVISIONS, lineage
from ops.queries.links import run_links
from ops.queries.log_files import LEVELS, Filter
from ops.queries.logs import logs
from ops.queries.run import ALARMS_SHOWN, RunView, phase_columns, run_view, session_columns
from ops.queries.series import KEYS, series_keys
from ops.queries.spec import spec_view
from ops.web.context import Before, Number, RunId
from ops.web.formats import run_url
from ops.web.frame import ALL_PHASES, Visited
from ops.web.texts import Like, Text
from yatt_core.workload_kinds import parts_in

router = APIRouter(prefix="/runs/{run_id}", include_in_schema=False)
OptionalNumber = Annotated[str, Like(r"^\d{0,9}$", "a number of up to nine digits, or nothing")]
"""A number in a form field that may be left empty."""


STOP_POLLING = 286
"""The status with which htmx shows a response and then stops asking for it."""


def number_of(value: str) -> int | None:
    """Returns the number in a form field; None if the field is empty."""
    return int(value) if value else None


Shown = Annotated[Display, Depends(Display)]
Chosen = Annotated[list[Text] | None, Query(max_length=KEYS)]


@router.get("")
def show_run(visit: Visited, run_id: RunId, shown: Shown, metric: Chosen = None) -> Response:
    """Shows a run: learning, parts of the reward, chosen metrics, throughput, phases, use of time, notes and tags."""
    ledger = visit.served.ledger
    view = run_view(ledger, run_id)
    known = [each.key for each in series_keys(ledger, run_id)]
    chosen = [key for key in dict.fromkeys(metric or ()) if key]
    spec = ledger.runs.revision(run_id).spec
    rewarded = part_charts(run_id, known, spec)
    if_there = {"Evaluation": evaluation_charts(run_id, known), "Curriculum": curriculum_charts(run_id, known)}
    return visit.render_run(
        "run.html",
        view.run,
        "",
        sections=(
            ("Learning health", learning_charts(run_id, measures_in(spec, known))),
            *([("Parts of the reward", rewarded)] if rewarded or parts_in(spec).language_model else []),
            *((title, charts) for title, charts in if_there.items() if charts),
            ("Throughput", charts_of(run_id, THROUGHPUT)),
        ),
        picked=chosen_charts(run_id, chosen),
        metrics=sorted({*known, *chosen}),
        chosen=chosen,
        display=shown,
        advice=advice_line(asdict(view.advice)),
        links=run_links(visit.served.ledger, run_id, replace(visit.served.pages(), dashboard="")),
        live_url=f"/api/v1{run_url(run_id, 'live')}",
        note_characters=NOTE_CHARACTERS,
        **_standing(view),
    )


@router.get("/spec")
def show_spec(visit: Visited, run_id: RunId) -> Response:
    """Shows the newest revision of the run's spec as YAML."""
    return visit.render_run("spec.html", visit.find(run_id), "spec", found=spec_view(visit.served.ledger, run_id))


@router.get("/now")
def show_now(visit: Visited, run_id: RunId) -> Response:
    """Renders the parts of the run's page that show its status and the possible actions."""
    view = run_view(visit.served.ledger, run_id)
    status = STOP_POLLING if view.run.finished else 200
    return visit.render("run_live.html", status, **visit.about(view.run), tab="", out_of_band=True, **_standing(view))


@router.get("/time")
def show_time(visit: Visited, run_id: RunId) -> Response:
    """Renders the part of the run's page that shows its use of time."""
    view = run_view(visit.served.ledger, run_id)
    return visit.render("run_time.html", sft=visit.has_sft(run_id), **_standing(view))


def _standing(view: RunView) -> dict[str, Any]:
    return {
        "view": view,
        "parts_of_time": time_parts(view.time.buckets, view.time.wall_seconds),
        "alarm_columns": ALARMS_SHOWN,
        "phase_columns": phase_columns,
        "session_columns": session_columns,
    }


@router.get("/faults")
def show_faults(visit: Visited, run_id: RunId, before: Before = None) -> Response:
    """Shows the run's faults and their cost."""
    found = faults(visit.served.ledger, run_id, before=before)
    sft = visit.has_sft(run_id)
    return visit.render_run(
        "faults.html",
        visit.find(run_id),
        "faults",
        found=found,
        crash_columns=crash_columns(sft),
        attempt_columns=attempt_columns(
            sft, lambda row: run_url(run_id, "logs", iteration=row.iteration, phase=row.phase)
        ),
    )


@router.get("/checkpoints")
def show_checkpoints(visit: Visited, run_id: RunId, before: Place = None) -> Response:
    """Shows checkpoints, the results of verifying them, and their aliases."""
    found = checkpoints(visit.served.ledger, run_id, before=before)
    return visit.render_run(
        "checkpoints.html",
        visit.find(run_id),
        "checkpoints",
        found=found,
        columns=CHECKPOINTS,
        moves=MOVES,
        promotions=aliases(visit.served.ledger, run_id).history,
        alias_choices=[(name, name) for name in ALIASES],
    )


@router.get("/evaluations")
def show_evaluations(visit: Visited, run_id: RunId) -> Response:
    """Shows the evaluations of the run's suites: curves, figures by set, and regressions."""
    found = suite_histories(visit.served.ledger, run_id)
    return visit.render_run(
        "evaluations.html",
        visit.find(run_id),
        "evaluations",
        histories=[(history, suite_picture(history)) for history in found],
        columns=EVALUATIONS,
    )


@router.get("/logs")
def show_logs(
    visit: Visited,
    run_id: RunId,
    iteration: OptionalNumber = "",
    phase: Text = "",
    actor: Text = "",
    level: Level = "info",
) -> Response:
    """Shows log records of the driver and the actors, filtered by iteration, phase, actor and level."""
    asked = Filter(number_of(iteration), phase or None, actor or None, level)
    found = logs(visit.served.ledger, visit.served.home, run_id, asked)
    return visit.render_run(
        "logs.html",
        visit.find(run_id),
        "logs",
        found=found,
        asked=asked,
        levels=[(name, name) for name in LEVELS],
        phases=[("", "all"), *((name, phase_name(name, visit.has_sft(run_id))) for name in ALL_PHASES)],
        actor_choices=[("", "all"), *((name, name) for name in found.actors)],
    )


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A branch and the branches that begin on it."""

    branch: BranchNode
    below: tuple[TreeNode, ...]


@router.get("/lineage")
def show_lineage(
    visit: Visited,
    run_id: RunId,
    checkpoint: Number | None = None,
    branch: Number | None = None,
    term: Number | None = None,
) -> Response:
    """Shows branches and forks, and the lineage of a checkpoint."""
    found = lineage(
        ledger=visit.served.ledger, home=visit.served.home, run=run_id, iteration=checkpoint, branch=branch, term=term
    )
    return visit.render_run(
        "lineage.html",
        visit.find(run_id),
        "lineage",
        roots=tree_of(run_id, found.branches),
        lineage=found.lineage,
        missing=found.missing,
        drift_columns=DRIFT,
        revision_columns=REVISIONS,
    )


def tree_of(run: str, branches: Iterable[BranchNode]) -> tuple[TreeNode, ...]:
    """Returns a run's branches as trees; the roots are the first branch and branches inherited from another run."""
    listed = list(branches)

    def below(number: int | None) -> tuple[TreeNode, ...]:
        own = (node for node in listed if (node.parent_branch if node.parent_run == run else None) == number)
        return tuple(TreeNode(node, below(node.number)) for node in own)

    return below(None)
