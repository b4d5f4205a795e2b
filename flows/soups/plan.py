"""What a soup does next: a state machine over its runs and the rewards measured so far, without any I/O.

    supervised run to iteration 0
    -> for each beta, a backbone for each objective, to the search's iteration
    -> the grid of preferences for each beta, merged and measured; beta by hypervolume
    -> the chosen backbones to the target, and beside them a run for each objective alone (Rewarded Soup)
    -> the grid for both soups, merged and measured

Consumes `SoupFacts`; produces the next `Step`. Every step can be repeated: what is done already appears in the facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flows.soups.fronts import hypervolume, worst_of
from flows.soups.mixing import PreferenceGrid, preference_grid
from flows.soups.spec import SINGLE, SoupSpec

SEARCH = "search"
SOUP = "soup"
REWARDED = "rewarded_soup"
"""Stages whose merged models are measured: while beta is searched, the soup itself, and Rewarded Soup."""
Rewards = tuple[float, ...]


@dataclass(frozen=True, slots=True, order=True)
class SoupMember:
    """A run of the soup, by its row of the mixing matrix; with beta 1 it is trained on its objective alone."""

    beta: float
    objective: int

    def name(self, spec: SoupSpec) -> str:
        """Returns the member's name, such as `0.7/short`."""
        return f"{self.beta!r}/{spec.objectives[self.objective]}"


@dataclass(frozen=True, slots=True, order=True)
class PointKey:
    """A merged model that is measured.

    preference: its index in the grid.
    """

    stage: str
    beta: float
    preference: int


@dataclass(frozen=True, slots=True)
class SoupFacts:
    """What a soup has reached.

    supervised: newest committed iteration of the run that all others are forks of; -1 before the first.
    reached: the iteration that each member that exists has reached (`flows.members.driving.reached`).
    points: rewards of the merged models measured so far.
    chosen: the chosen beta; None until then.
    """

    supervised: int = -1
    reached: Mapping[SoupMember, int] = field(default_factory=dict)
    points: Mapping[PointKey, Rewards] = field(default_factory=dict)
    chosen: float | None = None


@dataclass(frozen=True, slots=True)
class Supervise:
    """Drive the supervised run to iteration 0."""


@dataclass(frozen=True, slots=True)
class Train:
    """Create the members that do not exist, and drive all to an iteration."""

    members: tuple[SoupMember, ...]
    until: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Merge and measure models of one stage and beta, from its members at an iteration."""

    points: tuple[PointKey, ...]
    iteration: int


@dataclass(frozen=True, slots=True)
class Choose:
    """Record the choice of beta, with the hypervolume of each candidate."""

    beta: float
    hypervolumes: Mapping[float, float]


Step = Supervise | Train | Measure | Choose


@dataclass(frozen=True, slots=True)
class SoupPlan:
    """A soup's spec with the numbers that its runs' spec determines.

    search_at: the iteration after which beta is chosen.
    target: the iteration at which the runs end.
    """

    spec: SoupSpec
    search_at: int
    target: int

    @property
    def grid(self) -> PreferenceGrid:
        """The preferences that are measured."""
        return preference_grid(len(self.spec.objectives), self.spec.grid_points)

    def members(self, beta: float) -> tuple[SoupMember, ...]:
        """Returns the members of a row of the mixing matrix each."""
        return tuple(SoupMember(beta, objective) for objective in range(len(self.spec.objectives)))

    def keys(self, stage: str, beta: float) -> tuple[PointKey, ...]:
        """Returns the models of a stage and beta."""
        return tuple(PointKey(stage, beta, index) for index in range(len(self.grid.preferences)))

    def next_step(self, facts: SoupFacts) -> Step | None:
        """Returns what to do next; None if everything is done."""
        if facts.supervised < 0:
            return Supervise()
        if facts.chosen is None:
            return self._search(facts)
        stages = [(SOUP, facts.chosen), *([(REWARDED, SINGLE)] if self.spec.rewarded_soup else [])]
        members = {member: None for _, beta in stages for member in self.members(beta)}
        return self._drive(tuple(members), self.target, facts) or self._measure(stages, self.target, facts)

    def _search(self, facts: SoupFacts) -> Step:
        betas = self.spec.betas
        if len(betas) == 1:
            return Choose(betas[0], {})
        members = tuple(member for beta in betas for member in self.members(beta))
        step = self._drive(members, self.search_at, facts)
        return step or self._measure([(SEARCH, beta) for beta in betas], self.search_at, facts) or self._choice(facts)

    def _drive(self, members: tuple[SoupMember, ...], until: int, facts: SoupFacts) -> Step | None:
        short = tuple(member for member in members if facts.reached.get(member, -1) < until)
        return Train(short, until) if short else None

    def _measure(self, stages: Sequence[tuple[str, float]], iteration: int, facts: SoupFacts) -> Step | None:
        for stage, beta in stages:
            missing = tuple(key for key in self.keys(stage, beta) if key not in facts.points)
            if missing:
                return Measure(missing, iteration)
        return None

    def _choice(self, facts: SoupFacts) -> Choose:
        """Chooses the beta with the largest hypervolume over the worst rewards of all; of equal ones, the smallest."""
        found = {beta: [facts.points[key] for key in self.keys(SEARCH, beta)] for beta in sorted(self.spec.betas)}
        reference = worst_of([point for points in found.values() for point in points])
        volumes = {beta: hypervolume(points, reference) for beta, points in found.items()}
        return Choose(max(volumes, key=lambda beta: (volumes[beta], -beta)), volumes)
