"""A soup for commands and pages: its runs, the choice of beta, its measured models, and what comes next.

Consumes the ledger; produces `SoupView`, plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from db.ledger import Ledger
from flows.soups.outcome import SoupFigures, hypervolume_ratio, measured_soups
from flows.soups.plan import Choose, Measure, Step, Supervise, Train
from flows.soups.record import SOUP, SoupRecord
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
