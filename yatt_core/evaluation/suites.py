"""Evaluation suites: several sets of held-out tasks, how they are answered, and what makes two evaluations comparable.

Consumes a YAML file and the spec of the run whose weights are evaluated. Produces the tasks of all sets, the spec under which
they are answered, and a digest: evaluations with the same digest had the same tasks, answered and scored in the same way.
Raises `ConfigurationError` with a line per mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, model_validator

from yatt_core.datasets.rows import Keep
from yatt_core.datasets.sources import all_tasks
from yatt_core.digests import chain_digest, json_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.evaluation.paired import TestKind
from yatt_core.evaluation.panel import PanelSpec
from yatt_core.prompts.stream import Prompt
from yatt_core.spec import RunSpec
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model
from yatt_core.spec.sections.data import Source as SourceSpec
from yatt_core.spec.sections.data import SourceName
from yatt_core.spec.sections.evaluation import EvaluationSampling

ANSWERING = ("model", "rollout", "rewards", "seed", "exact")
"""Sections of a run's spec on which answers and scores depend, apart from the weights."""

HELD_OUT = "held-out"
"""Name of the suite of a run's own held-out tasks."""


class SuiteSet(SpecModel):
    """A set of tasks."""

    name: SourceName
    """Name of the set in results."""
    source: SourceSpec
    """Where its tasks come from, as in `data.sources`: the held-out rows if the source names any, else all of its rows."""
    tasks: PositiveInt | None = None
    """Maximum number of tasks, the first distinct ones; `null`: all of a file, 300 of a generated source."""


class SuiteSpec(SpecModel):
    """A suite of held-out sets, which every evaluation answers in the same way."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Name of the suite in the history of a run."""
    sets: tuple[SuiteSet, ...] = Field(min_length=1)
    """The sets of tasks."""
    sampling: EvaluationSampling | None = None
    """`null`: one greedy answer to each task."""
    judges: PanelSpec | None = None
    """Judges that score each answer, besides the run's reward functions; `null`: none."""
    test: TestKind = "mcnemar"
    """The paired test of regressions, as in `evaluation.promotion`."""
    level: float = Field(default=0.05, gt=0.0, lt=1.0)
    """Maximum p-value at which an evaluation counts as worse than an earlier one."""
    resamples: int = Field(default=10_000, ge=100, le=1_000_000)
    """Number of resamples of `bootstrap`."""

    @model_validator(mode="after")
    def _names_differ(self) -> SuiteSpec:
        names = [each.name for each in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"sets: each name can be given to one set only, not {names}")
        return self


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite that is ready to be answered by a run's weights.

    run_spec: the run's spec with the sets as its sources, and the suite's sampling.
    prompts: the tasks of all sets, set by set.
    digest: identifies tasks, answering and scoring.
    """

    spec: SuiteSpec
    run_spec: RunSpec
    prompts: tuple[Prompt, ...]
    digest: str


def load_suite(path: Path) -> SuiteSpec:
    """Returns a suite's spec; paths in it are relative to its folder."""
    return parse_suite(read_document(path), str(path))


def parse_suite(tree: Any, origin: str) -> SuiteSpec:
    """Returns the suite's spec in a tree of plain values.

    origin: the tree's name in error messages.
    """
    return parse_model(SuiteSpec, tree, origin)


def open_suite(suite: SuiteSpec, run: RunSpec, keep: Keep) -> Suite:
    """Reads the tasks of a suite for a run.

    keep: receives each image of a task.

    Raises `ConfigurationError` for a run that generates nothing, and for sets that cannot be read or are empty, and
    `DataError` for a row that cannot be used.
    """
    _require_answers(suite.name, run)
    prompts = tuple(prompt for number in range(len(suite.sets)) for prompt in _tasks(suite, number, keep))
    return Suite(suite, _spec_of(suite, run), prompts, _digest(suite, run, prompts))


def open_held_out(run: RunSpec, prompts: Sequence[Prompt], judges: PanelSpec) -> Suite:
    """Returns a run's own held-out tasks as a suite with judges.

    prompts: the tasks.

    Raises `ConfigurationError` for a run that generates nothing.
    """
    _require_answers(HELD_OUT, run)
    sets = tuple(
        SuiteSet(name=name, source=source) for name, source in zip(run.data.source_names, run.data.sources, strict=True)
    )
    suite = SuiteSpec(name=HELD_OUT, sets=sets, sampling=run.evaluation.sampling, judges=judges)
    return Suite(suite, run, tuple(prompts), _digest(suite, run, prompts))


def _require_answers(name: str, run: RunSpec) -> None:
    if not run.samples_responses:
        raise ConfigurationError(f"suite {name}: the run learns from its rows and generates no answers")


def _digest(suite: SuiteSpec, run: RunSpec, prompts: Sequence[Prompt]) -> str:
    rows = (json_digest([prompt.prompt_id, prompt.text, prompt.answer, list(prompt.media)]) for prompt in prompts)
    tree = run.model_dump(mode="json")
    answering = {name: tree[name] for name in ANSWERING}
    sampling = None if suite.sampling is None else suite.sampling.model_dump(mode="json")
    judges = [] if suite.judges is None else [suite.judges.digest()]
    return json_digest([suite.name, sampling, answering, run.data.system_prompt, chain_digest(rows), *judges])


def _tasks(suite: SuiteSpec, number: int, keep: Keep) -> Iterator[Prompt]:
    each = suite.sets[number]
    try:
        found = all_tasks(each.source, number, each.tasks, keep)
    except (ConfigurationError, DataError) as error:
        wrong = str(error).removeprefix("data.sources: ")
        raise ConfigurationError(f"suite {suite.name}, set {each.name}: {wrong}") from None
    if not found:
        raise ConfigurationError(f"suite {suite.name}, set {each.name}: it has no tasks; expected one row or more")
    for index, prompt in enumerate(found):  # named by the set, so that a file may move
        yield replace(prompt, prompt_id=f"{each.name}/{index}")


def _spec_of(suite: SuiteSpec, run: RunSpec) -> RunSpec:
    tree = run.model_dump(mode="json")
    tree["data"]["sources"] = [_source(each) for each in suite.sets]
    tree["data"]["curriculum"] = None
    tree["evaluation"]["sampling"] = None if suite.sampling is None else suite.sampling.model_dump(mode="json")
    return parse_model(RunSpec, tree, f"suite {suite.name}")


def _source(each: SuiteSet) -> dict[str, Any]:
    return each.source.model_dump(mode="json") | {"name": each.name}


def set_names(suite: SuiteSpec) -> Sequence[str]:
    """Returns the names of the sets, by the number of the source in results."""
    return [each.name for each in suite.sets]
