"""The spec of a sweep: the spec of its runs, the keys that vary, who proposes values, and whether weak trials stop early.

Consumes a YAML file of a sweep, or the spec of a run, and options laid over it. Produces a `SweepSpec` and the `RunSpec` of which
all trials are changes. Raises `ConfigurationError` with a line per mistake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from flows.sweeps.rungs import rungs_of
from flows.sweeps.space import MOST_TRIALS, Choices, Dimension, Setting, Space, grid, grid_size
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, load_spec, override_spec
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model
from yatt_core.spec.sections.metric_names import is_known, is_timing, nearest_metric

ACCURACY = "evaluation/accuracy"
DEFAULT_TRIALS = 16
NOT_SWEPT = {
    "name": "all runs of a sweep have one name",
    "seed": "`seeds` lists the seeds of each trial",
    "iterations": "trials are compared at the same iterations",
    "evaluation": "trials are compared by it",
    "tracking": "it does not change a result",
}
"""Keys that a space cannot contain, and why."""


class AshaSpec(SpecModel):
    """Asynchronous successive halving (arXiv 1810.05934): only the best trials of a rung go on to the next."""

    reduction: int = Field(default=4, ge=2, le=100)
    """The best of this many trials goes on, to this many times the iterations."""
    first_rung: PositiveInt = 1
    """Earliest iteration at which trials are compared; rungs are iterations that `evaluation.every` evaluates."""


class SweepSpec(SpecModel):
    """A sweep over keys of a run's spec."""

    base: str
    """The spec of the runs, relative to this file's folder."""
    space: dict[str, Dimension] = Field(min_length=1, max_length=50)
    """For each dotted key, `values` to choose from, or `low` and `high` of a range."""
    sampler: Literal["grid", "random", "tpe"] = "tpe"
    """Who proposes settings: all points of a `grid`; `random`; or `tpe`, Optuna's tree-structured Parzen estimator, which
    learns from the trials before."""
    asha: AshaSpec | None = None
    """Early stopping; `null`: each trial runs to its end."""
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Number of trials; by default the whole grid, or 16."""
    seeds: tuple[NonNegativeInt, ...] = Field(default=(), max_length=100)
    """Seeds that each trial runs with; the mean over them decides. By default the seed of the runs' spec."""
    metric: str = ACCURACY
    """The metric, of class *result*, by which trials are compared."""
    goal: Literal["maximize", "minimize"] = "maximize"
    """Whether the best trial has the largest or the smallest value."""
    workers: int = Field(default=4, ge=1, le=1000)
    """Trials that are under way at a time when the next decision is made; what a sweep decides depends on it, but not on how
    many runs the machine drives side by side (`--at-once`)."""

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("each seed can be listed once only")
        return seeds

    @model_validator(mode="after")
    def _grid_of_points(self) -> SweepSpec:
        if self.sampler != "grid":
            return self
        for key, each in self.space.items():
            if each.values is None and each.points is None:
                raise ValueError(f"space.{key}: a grid needs values, or a range with its number of points")
        if (size := grid_size(self.domains)) > MOST_TRIALS:
            raise ValueError(f"space: a grid of {size:,} settings; expected at most {MOST_TRIALS:,}")
        if self.trials is not None and self.trials > size:
            raise ValueError(f"trials: {self.trials} is more than the {size} settings of the grid")
        return self

    @property
    def domains(self) -> Space:
        """The values that can be proposed, by key."""
        return {key: each.domain for key, each in self.space.items()}

    @property
    def count(self) -> int:
        """Number of trials."""
        return self.trials or (grid_size(self.domains) if self.sampler == "grid" else DEFAULT_TRIALS)

    @property
    def sign(self) -> float:
        """What a value is multiplied by so that the largest is the best."""
        return 1.0 if self.goal == "maximize" else -1.0

    def rungs(self, run: RunSpec) -> tuple[int, ...]:
        """Returns the iterations at which trials are compared; the last one is the runs' target."""
        if self.asha is None:
            return (run.iterations,)
        return rungs_of(run.iterations, run.evaluation.every, self.asha.reduction, self.asha.first_rung)

    def seeds_of(self, run: RunSpec) -> tuple[int, ...]:
        """Returns the seeds of each trial."""
        return self.seeds or (run.seed,)

    def mistakes(self, run: RunSpec) -> Iterator[str]:
        """Yields what contradicts the spec of the runs."""
        if is_timing(self.metric):
            yield f"metric: {self.metric} depends on timing, so that a repetition would decide otherwise; expected a result"
        elif not run.has.own_metrics and not is_known(self.metric):
            yield f"metric: {self.metric!r} is not known; {nearest_metric(self.metric)}"
        if self.asha is not None and len(self.rungs(run)) == 1:
            yield (
                f"asha: with {run.iterations} iterations, evaluation.every {run.evaluation.every} and reduction "
                f"{self.asha.reduction} there is no rung before the end; evaluate more often, or leave asha out"
            )
        for key in self.space:
            for section, why in NOT_SWEPT.items():
                if key == section or key.startswith(f"{section}."):
                    yield f"space.{key}: cannot be swept: {why}"
        yield from self._refused(run)

    def _refused(self, run: RunSpec) -> Iterator[str]:
        """Yields the keys of which the spec refuses every value; one value may suit only some values of other keys."""
        if self.sampler == "grid":
            errors = [refusal(run, setting) for setting in grid(self.domains)]
            if all(errors):
                yield f"space: {errors[0]}"
            return
        for key, each in self.domains.items():
            values = each.values if isinstance(each, Choices) else (each.low, each.high)
            errors = [refusal(run, {key: value}) for value in values]
            if all(errors):
                yield f"space.{key}: {errors[0]}"


def refusal(run: RunSpec, setting: Setting) -> str | None:
    """Returns why the runs' spec cannot have a setting; None if it can."""
    try:
        changed_spec(run, setting)
    except ConfigurationError as error:
        return str(error)
    return None


def overrides_of(setting: Setting) -> list[str]:
    """Returns a setting as KEY=VALUE."""
    return [f"{key}={json.dumps(value)}" for key, value in setting.items()]


def changed_spec(run: RunSpec, setting: Setting) -> RunSpec:
    """Returns the runs' spec with a setting. Raises `ConfigurationError`."""
    return override_spec(run, overrides_of(setting), "the spec of the runs")


def load_sweep(
    path: Path, options: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> tuple[SweepSpec, RunSpec]:
    """Returns a sweep's spec and the spec of its runs.

    path: a sweep's file, which has the key `space`, or the spec of a run.
    options: values that replace those of the file; those of `space` and `asha` key by key.
    overrides: changes to the spec of the runs, as KEY=VALUE.
    """
    tree = read_document(path)
    given = dict(options or {})
    if "space" not in tree:
        tree = {"base": path.name}
    for section in ("space", "asha"):
        if section in given:
            known = tree.get(section) or {}
            if not isinstance(known, Mapping):
                raise ConfigurationError(f"{path}: {section}: expected keys and values (given: {known!r:.40})")
            given[section] = {**known, **given[section]}
    sweep = parse_sweep({"space": {}, **tree, **given}, str(path))
    run = load_spec(path.parent / sweep.base, overrides, with_files=True)
    if mistakes := list(sweep.mistakes(run)):
        raise ConfigurationError("\n".join(f"{path}: {line}" for line in mistakes))
    return sweep, run


def parse_sweep(tree: Any, origin: str) -> SweepSpec:
    """Returns the sweep's spec in a tree of plain values.

    origin: the tree's name in error messages.
    """
    return parse_model(SweepSpec, tree, origin)
