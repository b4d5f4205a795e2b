"""A soup in the ledger: the audit chain of its supervised run, and the forks of this run that are its members.

Consumes the ledger. Produces a soup's spec, plan and facts, and adds links to the chain: the soup's spec, the reward of each
merged model, the choice of beta, the models that were kept. A soup is named by its supervised run.

    soup          the spec of the soup
    soup_point    a merged model that was measured: preference, coefficients, digest of its weights, rewards
    soup_choice   the chosen beta, and the hypervolume of each candidate
    soup_merged   a merged model that became a run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from db.core.engine import Fence
from db.write.records import CheckpointRow
from flows.members.driving import reached
from flows.members.record import FamilyRecord, create_record
from flows.members.tags import Family
from flows.run.home import Home
from flows.soups.plan import PointKey, SoupFacts, SoupMember, SoupPlan
from flows.soups.spec import SoupSpec, parse_soup
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec

SOUP = Family("soup", "soup_member")
POINT = "soup_point"
CHOICE = "soup_choice"
MERGED = "soup_merged"


def create_soup(home: Home, soup: SoupSpec, run: RunSpec, by: str) -> str:
    """Creates a soup with its supervised run, which names it; returns the run's id.

    by: who starts it, for the audit chains of its runs.
    """
    return create_record(home, SOUP, soup, run, by=by)


@dataclass(frozen=True)
class SoupRecord(FamilyRecord):
    """A soup as the ledger has it.

    name: its supervised run.
    """

    family = SOUP

    @cached_property
    def spec(self) -> SoupSpec:
        """The soup's spec."""
        return parse_soup(self.begun_with, f"the spec of soup {self.name}")

    @cached_property
    def plan(self) -> SoupPlan:
        """The soup's plan."""
        return SoupPlan(self.spec, self.spec.search_iterations(self.run_spec), self.run_spec.iterations)

    def members(self) -> dict[SoupMember, str]:
        """Returns the runs of the members that exist."""
        named = {
            member.name(self.spec): member for beta in {*self.spec.betas, 1.0} for member in self.plan.members(beta)
        }
        forks = SOUP.forks(self.ledger, self.name)
        return {named[name]: run for name, run in forks.items() if name in named}

    def facts(self) -> SoupFacts:
        """Returns what the soup has reached."""
        choice = self.bodies(CHOICE)
        return SoupFacts(
            supervised=self.ledger.runs.find(self.name).iteration,
            reached={member: reached(self.ledger, run) for member, run in self.members().items()},
            points={
                PointKey(body["stage"], body["beta"], body["number"]): tuple(body["rewards"])
                for body in self.bodies(POINT)
            },
            chosen=choice[0]["beta"] if choice else None,
        )

    def merged(self) -> list[Mapping[str, Any]]:
        """Returns the merged models that became runs, oldest first: run, preference, coefficients, alpha."""
        return self.bodies(MERGED)

    def hypervolumes(self) -> dict[str, float]:
        """Returns the hypervolume of each candidate for beta; empty before the choice, or without one."""
        choice = self.bodies(CHOICE)
        return dict(choice[0]["hypervolumes"]) if choice else {}

    def checkpoint(self, run: str, iteration: int) -> CheckpointRow:
        """Returns the checkpoint that a run took at an iteration. Raises `ConfigurationError` if it is not kept."""
        for row in self.ledger.records.checkpoints(run):
            if row.is_meant(iteration):
                return row
        raise ConfigurationError(
            f"soup {self.name}: run {run} has no checkpoint of iteration {iteration} any longer; "
            f"`yatt rollback {run} --to {iteration}` and `yatt soup resume {self.name}` take it again"
        )

    def chosen_checkpoints(self) -> tuple[float, Sequence[CheckpointRow]]:
        """Returns the chosen beta and the backbones' last checkpoints. Raises `ConfigurationError` before they exist."""
        facts = self.facts()
        members = self.members()
        if facts.chosen is None:
            raise ConfigurationError(
                f"soup {self.name}: beta is not chosen yet; `yatt soup resume {self.name}` goes on"
            )
        backbones = self.plan.members(facts.chosen)
        short = [member for member in backbones if facts.reached.get(member, -1) < self.plan.target]
        if short:
            names = ", ".join(members.get(member, member.name(self.spec)) for member in short)
            raise ConfigurationError(
                f"soup {self.name}: not all backbones have reached iteration {self.plan.target} yet ({names}); "
                f"`yatt soup resume {self.name}` goes on"
            )
        return facts.chosen, [self.checkpoint(members[member], self.plan.target) for member in backbones]

    def add_point(self, fence: Fence, key: PointKey, rewards: Sequence[float], more: Mapping[str, Any]) -> None:
        """Records the rewards of a merged model. Raises `Fenced`."""
        body = {"stage": key.stage, "beta": key.beta, "number": key.preference, "rewards": list(rewards)}
        self.ledger.events.append(self.name, POINT, {**more, **body}, fence)

    def choose(self, fence: Fence, beta: float, hypervolumes: Mapping[float, float]) -> None:
        """Records the choice of beta. Raises `Fenced`."""
        volumes = {repr(candidate): volume for candidate, volume in hypervolumes.items()}
        self.ledger.events.append(self.name, CHOICE, {"beta": beta, "hypervolumes": volumes}, fence)
