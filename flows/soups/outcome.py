"""What a soup has to show: rewards by preference beside Rewarded Soup, hypervolumes, and how well rewards follow preferences.

Consumes a plan and its facts; produces plain values for commands, pages and pictures. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from flows.soups.fronts import hypervolume, kendall_tau_b, pareto_front, worst_of
from flows.soups.mixing import Preference, coefficients, extrapolated
from flows.soups.plan import REWARDED, SOUP, Rewards, SoupFacts, SoupPlan
from flows.soups.spec import SINGLE


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A merged model of the grid.

    coefficients: of the backbones, in the order of the objectives, without extrapolation.
    on_front: whether no other model of the same soup is better in everything.
    """

    preference: Preference
    coefficients: tuple[float, ...]
    rewards: Rewards
    on_front: bool


@dataclass(frozen=True, slots=True)
class SoupFigures:
    """A soup's models, in the order of the grid, and its figures.

    hypervolume: over the lowest rewards of all soups that were measured.
    kendall_tau: for each objective, Kendall's tau-b between its weight and its reward along its line of the grid.
    """

    stage: str
    beta: float
    models: tuple[MeasuredModel, ...]
    hypervolume: float
    kendall_tau: tuple[float, ...]

    @property
    def mean_tau(self) -> float:
        """The mean over the objectives."""
        return sum(self.kendall_tau) / len(self.kendall_tau)


def measured_soups(plan: SoupPlan, facts: SoupFacts) -> tuple[SoupFigures, ...]:
    """Returns the soups of which the whole grid has been measured: the soup itself, then Rewarded Soup."""
    stages = [(SOUP, facts.chosen), (REWARDED, SINGLE)]
    whole = [
        (stage, beta, [facts.points[key] for key in plan.keys(stage, beta)])
        for stage, beta in stages
        if beta is not None and all(key in facts.points for key in plan.keys(stage, beta))
    ]
    everything = [point for _, _, points in whole for point in points]
    return tuple(
        _figures(plan=plan, stage=stage, beta=beta, points=points, reference=worst_of(everything))
        for stage, beta, points in whole
    )


def _figures(plan: SoupPlan, stage: str, beta: float, points: list[Rewards], reference: list[float]) -> SoupFigures:
    grid = plan.grid
    front = set(pareto_front(points))
    models = tuple(
        MeasuredModel(preference, tuple(coefficients(preference, beta)), rewards, index in front)
        for index, (preference, rewards) in enumerate(zip(grid.preferences, points, strict=True))
    )
    taus = tuple(
        kendall_tau_b(
            [grid.preferences[index][objective] for index in line], [points[index][objective] for index in line]
        )
        for objective, line in enumerate(grid.lines)
    )
    return SoupFigures(
        stage=stage, beta=beta, models=models, hypervolume=hypervolume(points, reference), kendall_tau=taus
    )


def hypervolume_ratio(soups: tuple[SoupFigures, ...]) -> float | None:
    """Returns the soup's hypervolume over Rewarded Soup's; None if one of them is missing or Rewarded Soup's is 0."""
    found = {soup.stage: soup.hypervolume for soup in soups}
    rewarded = found.get(REWARDED, 0.0)
    return found[SOUP] / rewarded if SOUP in found and rewarded else None


def merge_terms(preference: Preference, beta: float, alpha: float) -> tuple[list[float], float]:
    """Returns the coefficients of the backbones for a preference, and that of the supervised model."""
    return extrapolated(coefficients(preference, beta), alpha)
