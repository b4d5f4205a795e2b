"""The spec of a soup: a YAML file that names the spec of its runs, the objectives, and how beta is chosen.

Consumes the file and overrides of the runs' spec; produces a `SoupSpec` and the `RunSpec` that all of its runs begin with.
Raises `ConfigurationError` with a line per mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, field_validator, model_validator

from flows.soups.mixing import FEWEST, MOST, mixing_matrix
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model

SINGLE = 1.0
"""The beta of a run that is trained on its own objective alone, as for Rewarded Soup."""


class SoupSpec(SpecModel):
    """A soup: one backbone for each objective, trained on mixed rewards, and merges of them for any preference."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Name of the soup and of all its runs, to which a number is appended."""
    base: str
    """The spec of the runs, relative to this file's folder."""
    objectives: tuple[str, ...] = Field(min_length=FEWEST, max_length=MOST)
    """Parts of the runs' reward, of kind `function`, in the order of a preference's numbers. Their values are multiplied by
    the weights that the runs' spec gives them; other parts count in each run as that spec says."""
    betas: tuple[float, ...] = Field(default=(0.6, 0.7, 0.8), min_length=1, max_length=8)
    """Weights of a backbone's own objective to choose from, each above 1 / number of objectives and at most 1."""
    search_fraction: float = Field(default=0.2, gt=0.0, le=1.0)
    """Fraction of the iterations after which beta is chosen by hypervolume; only the chosen backbones are trained on."""
    grid_points: int = Field(default=11, ge=2, le=101)
    """Preferences that are evaluated for each objective: its weight rises from 0 to 1, and the others share the rest."""
    samples_per_prompt: PositiveInt = 1
    """Responses to each held-out prompt, sampled as in training, from which the reward of a merged model is measured."""
    extrapolation: float = Field(default=0.0, ge=0.0, le=1.0)
    """alpha: the grid's models are (1 + alpha) times the merged one minus alpha times the supervised one."""
    rewarded_soup: bool = True
    """Whether a run for each objective alone is trained too, and merged by preference (arXiv 2306.04488), to compare with."""

    @field_validator("objectives")
    @classmethod
    def _distinct_objectives(cls, objectives: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(objectives)) < len(objectives):
            raise ValueError("each objective can be listed once only")
        return objectives

    @model_validator(mode="after")
    def _fitting_betas(self) -> SoupSpec:
        if len(set(self.betas)) < len(self.betas):
            raise ValueError("betas: each can be listed once only")
        for beta in self.betas:
            try:
                mixing_matrix(len(self.objectives), beta)
            except ConfigurationError as error:
                raise ValueError(f"betas: {error}") from None
        return self

    def search_iterations(self, run: RunSpec) -> int:
        """Returns the iteration after which beta is chosen."""
        return max(1, math.ceil(self.search_fraction * run.iterations - 1e-9))

    def scales(self, run: RunSpec) -> list[float]:
        """Returns the weights of the objectives in the runs' spec, by which their values are multiplied."""
        weights = {part.name: part.weight for part in run.rewards.parts}
        return [weights[name] for name in self.objectives]

    def mixed_weights(self, run: RunSpec, row: Sequence[float]) -> list[str]:
        """Returns the overrides of the runs' spec that give the objectives these weights, relative to their own."""
        places = {part.name: (index, part.weight) for index, part in enumerate(run.rewards.parts)}
        mixed = zip(self.objectives, row, strict=True)
        return [f"rewards.parts.{places[name][0]}.weight={share * places[name][1]!r}" for name, share in mixed]

    def mistakes(self, run: RunSpec) -> Iterator[str]:
        """Yields what contradicts the spec of the runs."""
        functions = {part.name: part for part in run.rewards.functions}
        for name in self.objectives:
            if name not in functions:
                yield f"objectives: {name!r} is no part of kind function in rewards.parts; expected some of {list(functions)}"
            elif functions[name].weight == 0.0:
                yield f"objectives: rewards.parts {name!r} has weight 0, so there is nothing to learn from it"
        if not run.has.language_model:
            yield f"base: the workload {run.workload.title} has no policies to merge; expected a language model"
        if run.virtual:
            yield "base: virtual engines have no weights to merge; expected torch, vllm, fsdp2 or megatron"
        if self.search_iterations(run) >= run.iterations and len(self.betas) > 1:
            yield f"search_fraction: beta would be chosen after all {run.iterations} iterations; expected a smaller fraction"


def load_soup(path: Path, overrides: Sequence[str] = ()) -> tuple[SoupSpec, RunSpec]:
    """Returns a soup's spec and the spec of its runs.

    overrides: changes to the spec of the runs, as KEY=VALUE.
    """
    soup = parse_soup(read_document(path), str(path))
    run = load_spec(path.parent / soup.base, [*overrides, f"name={soup.name}"], with_files=True)
    if mistakes := list(soup.mistakes(run)):
        raise ConfigurationError("\n".join(f"{path}: {line}" for line in mistakes))
    return soup, run


def parse_soup(tree: Any, origin: str) -> SoupSpec:
    """Returns the soup's spec in a tree of plain values.

    origin: the tree's name in error messages.
    """
    return parse_model(SoupSpec, tree, origin)
