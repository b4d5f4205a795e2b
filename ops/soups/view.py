"""A soup for commands and pages: its runs, the choice of beta, its measured models, and what comes next.

Consumes the ledger; produces `SoupView`, plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from db.ledger import Ledger
from flows.soups.outcome import MeasuredModel, SoupFigures, hypervolume_ratio, measured_soups
from flows.soups.plan import Choose, Measure, Step, Supervise, Train
from flows.soups.record import SOUP, SoupRecord
from ops.presentation.columns import Column, Columns, LinkCell, RunCell, StateCell
from ops.soups.words import preference_text
from yatt_core.counting import many


@dataclass(frozen=True, slots=True)
class MemberView:
    """A run of the soup. beta, objective: None for the supervised run, of which all others are forks."""

    run: str
    beta: float | None
    objective: str | None
    iteration: int
    state: str


@dataclass(frozen=True, slots=True)
class SoupView:
    """A soup.

    search_at, target: iterations after which beta is chosen, and the runs end.
    beta: None until it is chosen.
    hypervolumes: those of the candidates, at the search.
    soups: the soup and Rewarded Soup, once their grids are measured; `hypervolume_ratio` compares the two.
    merged: the merged models that became runs: run, preference, alpha.
    following: what the soup does next; empty if it is done.
    """

    soup: str
    objectives: tuple[str, ...]
    search_at: int
    target: int
    beta: float | None
    hypervolumes: Mapping[str, float]
    members: tuple[MemberView, ...]
    soups: tuple[SoupFigures, ...]
    hypervolume_ratio: float | None
    merged: tuple[Mapping[str, Any], ...]
    following: str


def soup_view(ledger: Ledger, run: str) -> SoupView:
    """Returns the soup to which a run belongs. Raises `ConfigurationError` if it belongs to none."""
    record = SoupRecord.of(ledger, run)
    facts = record.facts()
    plan = record.plan
    supervised = ledger.runs.find(record.name)
    members = [
        MemberView(run=record.name, beta=None, objective=None, iteration=supervised.iteration, state=supervised.state)
    ]
    for member, name in sorted(record.members().items()):
        row = ledger.runs.find(name)
        objective = record.spec.objectives[member.objective]
        members.append(
            MemberView(run=name, beta=member.beta, objective=objective, iteration=row.iteration, state=row.state)
        )
    figures = measured_soups(plan, facts)
    return SoupView(
        soup=record.name,
        objectives=record.spec.objectives,
        search_at=plan.search_at,
        target=plan.target,
        beta=facts.chosen,
        hypervolumes=record.hypervolumes(),
        members=tuple(members),
        soups=figures,
        hypervolume_ratio=hypervolume_ratio(figures),
        merged=tuple(record.merged()),
        following=_in_words(plan.next_step(facts)),
    )


def soup_list(ledger: Ledger) -> tuple[SoupView, ...]:
    """Returns the soups among the newest runs, newest first."""
    return tuple(soup_view(ledger, name) for name in SOUP.records(ledger))


def _in_words(step: Step | None) -> str:
    match step:
        case None:
            return ""
        case Supervise():
            return "make the supervised model"
        case Train(members, until):
            return f"train {many(len(members), 'run')} to iteration {until}"
        case Measure(points, _):
            return f"measure {many(len(points), 'merged model')} ({points[0].stage}, beta {points[0].beta:g})"
        case Choose():
            return "choose beta"


def _trained_on(member: MemberView) -> str:
    if member.beta is None or member.objective is None:
        return "nothing: the supervised model"
    return f"{member.objective} alone" if member.beta == 1 else f"{member.objective}, beta {member.beta:g}"


def _coefficients(model: MeasuredModel) -> str:
    return " ".join(f"{coefficient:+.3f}" for coefficient in model.coefficients)


SOUPS: Columns[SoupView] = (
    Column("soup", lambda view: LinkCell(view.soup, f"/soups/{quote(view.soup)}"), heads=True),
    Column("objectives", lambda view: ", ".join(view.objectives), style="break"),
    Column("runs", lambda view: len(view.members), number=True),
    Column("beta", lambda view: view.beta, number=True),
    Column("hypervolume, to Rewarded Soup's", lambda view: view.hypervolume_ratio, number=True),
    Column("next", lambda view: view.following or "done"),
)
MEMBERS: Columns[MemberView] = (
    Column("run", lambda member: RunCell(member.run), heads=True),
    Column("trained on", _trained_on),
    Column("iteration", lambda member: max(0, member.iteration), number=True),
    Column("state", lambda member: StateCell(member.state)),
)
MERGED: Columns[Mapping[str, Any]] = (
    Column("merged run", lambda merged: RunCell(merged["run"], "lineage"), heads=True),
    Column("preference", lambda merged: preference_text(merged["preference"])),
)


def model_columns(view: SoupView) -> Columns[MeasuredModel]:
    """Returns the columns of a soup's measured models: a column for each objective's reward."""
    return (
        Column("preference", lambda model: preference_text(model.preference), heads=True),
        Column("coefficients", _coefficients),
        *(_reward_column(place, name) for place, name in enumerate(view.objectives)),
        Column("on the front", lambda model: "yes" if model.on_front else ""),
    )


def _reward_column(place: int, name: str) -> Column[MeasuredModel]:
    return Column(name, lambda model: model.rewards[place], number=True, verbatim=True)
