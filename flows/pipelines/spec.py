"""The spec of a pipeline: a YAML file of jobs, what each one needs, and what it takes from earlier ones.

Consumes the file; produces a `PipelineSpec`. Raises `ConfigurationError` with a line per mistake: unknown keys, jobs that do not
exist, circles, and references to something that a job does not produce.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from flows.pipelines.references import referenced
from flows.pipelines.triggers import PipelineTrigger, Trigger
from yatt_core.errors import ConfigurationError
from yatt_core.section import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model
from yatt_core.spec.sections.gates import GateSpec

NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"
OF_A_RUN = ("model", "data", "algorithm", "rollout", "rewards", "trainer")
"""Sections of a run's spec."""
RUN = "run"
CHECKPOINT = "checkpoint"
MODEL = "model"
"""What a job can produce for others: a run's id, the folder of its newest checkpoint, and a Hugging Face model folder."""


class _Job(SpecModel):
    needs: tuple[str, ...] = ()
    """Jobs that must have ended well before this one begins, besides those that it refers to."""

    def sources(self) -> frozenset[str]:
        """Returns the jobs whose output this one takes."""
        return frozenset()


class SpecJob(_Job):
    """A job that reads the spec of a run or a soup."""

    spec: str
    """The spec, relative to this file's folder."""
    set: tuple[str, ...] = ()
    """Changes to the spec, as KEY=VALUE; `${jobs.NAME.model}` stands for what an earlier job produced."""

    def sources(self) -> frozenset[str]:
        """Returns the jobs that the changes refer to."""
        return frozenset(job for text in self.set for job, _ in referenced(text))


class TrainJob(SpecJob):
    """Drives a run to its target: supervised training, a reward model, learning from preferences, or RLHF."""

    kind: Literal["train"]


class SoupJob(SpecJob):
    """Trains a soup's backbones, and measures merged models, to its end."""

    kind: Literal["soup"]


class _OfJob(_Job):
    of: str
    """The job whose result this one takes."""

    def sources(self) -> frozenset[str]:
        """Returns the job whose result this one takes."""
        return frozenset({self.of})


class EvaluateJob(_OfJob):
    """Measures the newest checkpoint of a `train` or `merge` job."""

    kind: Literal["evaluate"]
    suite: str | None = None
    """A suite's file, relative to this file's folder. `null`: the run's held-out tasks."""


class GateJob(_OfJob):
    """Ends well if an evaluation is good enough and, if people are asked, once they approve."""

    kind: Literal["gate"]
    at_least: dict[str, float] = Field(default_factory=dict)
    """Lowest values of the evaluation's figures, such as `accuracy: 0.3`."""
    approval: GateSpec | None = None
    """Who is asked. `null`: nobody, the figures decide alone."""

    @model_validator(mode="after")
    def _has_a_condition(self) -> GateJob:
        if not self.at_least and self.approval is None:
            raise ValueError("a gate without a condition: expected at_least, approval or both")
        return self


class MergeJob(_OfJob):
    """Merges a soup's backbones for a preference into a new run."""

    kind: Literal["merge"]
    preference: tuple[float, ...]
    """Weight of each objective, with sum 1."""
    extrapolation: float = Field(default=0.0, ge=0.0, le=1.0)
    """Moves away from the supervised model by this factor."""


class ExportJob(_OfJob):
    """Writes the newest checkpoint as a Hugging Face model folder."""

    kind: Literal["export"]
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the weights. `null`: the training type."""


class PromoteJob(_OfJob):
    """Gives the newest checkpoint an alias."""

    kind: Literal["promote"]
    to: Literal["candidate", "champion"] = "champion"
    """The alias."""


Job = Annotated[
    TrainJob | SoupJob | EvaluateJob | GateJob | MergeJob | ExportJob | PromoteJob, Field(discriminator="kind")
]
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "train": (RUN, CHECKPOINT, MODEL),
    "merge": (RUN, CHECKPOINT, MODEL),
    "soup": (RUN,),
    "export": (MODEL,),
}
"""What jobs of each kind produce for references."""
TAKES: Mapping[str, tuple[str, ...]] = {
    "evaluate": ("train", "merge"),
    "export": ("train", "merge"),
    "promote": ("train", "merge"),
    "gate": ("evaluate",),
    "merge": ("soup",),
}
"""Kinds of jobs whose result a kind takes by `of`."""


class PipelineSpec(SpecModel):
    """A pipeline: jobs that need each other."""

    name: str = Field(pattern=NAME)
    """Name of the pipeline, to which a number is appended each time that it runs."""
    jobs: dict[Annotated[str, Field(pattern=NAME)], Job] = Field(min_length=1, max_length=200)
    """The jobs by name."""
    triggers: tuple[Trigger, ...] = Field(default=(), max_length=50)
    """What begins the pipeline once it is deployed."""

    @model_validator(mode="after")
    def _can_be_ordered(self) -> PipelineSpec:
        mistakes = [line for name, job in self.jobs.items() for line in self._mistakes(name, job)]
        if not mistakes and (circle := self._circle()):
            mistakes = [f"jobs: {' -> '.join(circle)}: these jobs need each other, so none can begin"]
        for number, trigger in enumerate(self.triggers):
            if isinstance(trigger, PipelineTrigger) and trigger.name == self.name:
                mistakes.append(
                    f"triggers.{number}.name: {self.name!r} is this pipeline; expected the name of another one"
                )
            if trigger in self.triggers[:number]:
                mistakes.append(f"triggers.{number}: the same trigger stands there twice")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self

    def document(self) -> dict[str, Any]:
        """Returns the part that says what is done, without what begins it."""
        return self.model_dump(mode="json", exclude={"triggers"})

    def needs(self, name: str) -> frozenset[str]:
        """Returns the jobs that must have ended well before a job begins."""
        job = self.jobs[name]
        return frozenset(job.needs) | job.sources()

    def wants(self, name: str, product: str) -> bool:
        """Returns True if another job refers to a product of a job."""
        return any(
            (name, product) in set(referenced(text)) for job in self.jobs.values() for text in getattr(job, "set", ())
        )

    def order(self) -> list[str]:
        """Returns all jobs, each after those that it needs, otherwise as in the file."""
        found: dict[str, None] = {}
        while len(found) < len(self.jobs):
            free = [name for name in self.jobs if name not in found and self.needs(name) <= found.keys()]
            if not free:
                break
            found[free[0]] = None
        return list(found)

    def _mistakes(self, name: str, job: Any) -> Iterator[str]:
        for each in sorted(self.needs(name)):
            if each not in self.jobs:
                near = difflib.get_close_matches(each, self.jobs, n=1)
                said = f"did you mean {near[0]!r}?" if near else f"known jobs: {', '.join(self.jobs)}"
                yield f"jobs.{name}: needs {each!r}, which is not a job; {said}"
        takes = TAKES.get(job.kind)
        if takes is not None and (source := self.jobs.get(job.of)) is not None and source.kind not in takes:
            yield f"jobs.{name}.of: {job.of!r} is of kind {source.kind}; expected one of kind {' or '.join(takes)}"
        for text in getattr(job, "set", ()):
            for other, product in referenced(text):
                known = PRODUCTS.get(self.jobs[other].kind, ()) if other in self.jobs else (product,)
                if product not in known:
                    yield f"jobs.{name}.set: {other!r} has no {product!r}; known: {', '.join(known) or 'nothing'}"

    def _circle(self) -> list[str]:
        """Returns jobs of which each needs the next, and the last one the first; empty if there are none."""
        stuck = [name for name in self.jobs if name not in set(self.order())]
        if not stuck:
            return []
        path = [stuck[0]]
        while True:
            following = next(name for name in stuck if name in self.needs(path[-1]))
            if following in path:
                return [*path[path.index(following) :], following]
            path.append(following)


def load_pipeline(path: Path) -> PipelineSpec:
    """Returns the pipeline in a YAML file."""
    tree = read_document(path)
    if "jobs" not in tree and (sections := [key for key in OF_A_RUN if key in tree]):
        raise ConfigurationError(
            f"{path}: looks like the spec of a run, since it has {', '.join(sections)}, but no jobs; see `yatt train`"
        )
    spec = parse_pipeline(tree, str(path))
    missing = [
        f"{path}: jobs.{name}.{key}: {path.parent / file} does not exist"
        for name, job in spec.jobs.items()
        for key in ("spec", "suite")
        if (file := getattr(job, key, None)) is not None and not (path.parent / file).is_file()
    ]
    if missing:
        raise ConfigurationError("\n".join(missing))
    return spec


def require_triggers(spec: PipelineSpec, path: Path) -> None:
    """Raises `ConfigurationError` for a pipeline that nothing begins."""
    if not spec.triggers:
        raise ConfigurationError(f"{path}: triggers: missing; expected what begins the pipeline, such as a schedule")


def parse_pipeline(tree: Any, origin: str) -> PipelineSpec:
    """Returns the pipeline in a tree of plain values.

    origin: the tree's name in error messages.
    """
    return parse_model(PipelineSpec, tree, origin)
