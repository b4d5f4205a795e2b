"""Panels of judges: several generative judges score each answer to a held-out task, and their values are combined.

Consumes answers, and judges in this process. Produces for each task the value of each judge and of the panel. The seeds of a
judgement depend on the run's seed, the judge, the task and the sample, never on the weights, so that checkpoints are comparable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from yatt_core.digests import json_digest, path_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.evaluation.answers import TaskBatch
from yatt_core.evaluation.estimators import NORMAL_95, Estimate
from yatt_core.judges.items import judge_item
from yatt_core.judges.registry import build_judge
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.models.model_folder import check_model_folder
from yatt_core.prompts.prompt import Completion
from yatt_core.protocols.judges import Judge, JudgeItem, JudgeRequest, aggregate
from yatt_core.spec.base import SpecModel
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.rewards.parsing import WrongSteps
from yatt_core.spec.sections.model import GivenFolder

PANEL = "panel"
JUDGE = "judge_"
"""Names of figures: of the panel, and the beginning of that of a judge."""


class PanelSpec(SpecModel):
    """Judges that score each answer, and how their values become one."""

    parts: tuple[GenerativePart, ...] = Field(min_length=1, max_length=20)
    """The judges, as in `rewards.parts`; `weight` is not used."""
    combine: Literal["mean", "majority"] = "mean"
    """`mean` of the judges' values. `majority`: 1 if more than half of the judges give at least `at_least`, else 0."""
    at_least: float = 0.5
    """Lowest value with which a judge is in favour of an answer."""

    @model_validator(mode="after")
    def _parts_fit(self) -> PanelSpec:
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ValueError(f"parts: each name can be given to one judge only, not {names}")
        for part in self.parts:
            if isinstance(part.parse, WrongSteps):
                raise ValueError(f"parts: {part.name!r} names wrong steps; a panel needs judges that give a score")
            if part.model is not None and not isinstance(part.model, GivenFolder):
                raise ValueError(f"parts: {part.name!r}: a panel needs a model with weights, of kind folder or hub")
        return self

    def digest(self) -> str:
        """Returns a digest of all on which the judges' values depend, with the contents of their models' folders.

        Raises `ConfigurationError` for a folder that is no model.
        """
        parts = [part.model_dump(mode="json", exclude={"model", "weight"}) for part in self.parts]
        models = [None if (path := _model(part)) is None else path_digest(path) for part in self.parts]
        return json_digest([parts, models, self.combine, self.at_least])


@dataclass(frozen=True, slots=True)
class PanelScores:
    """What a panel says about the answers to a task, as means over the answers that have a value; None without any.

    judges: by name of the judge.
    """

    panel: float | None
    judges: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer to a task.

    task: index of the task among all tasks.
    answer: the reference answer, if there is one.
    """

    task: int
    sample: int
    prompt: str
    answer: str | None
    completion: Completion


class Panel:
    """Collects answers, and has all of them judged by one judge after another."""

    def __init__(self, spec: PanelSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._answers: list[_Answer] = []

    def take(self, batch: TaskBatch) -> None:
        """Takes the answers of a batch that has ended."""
        completions = [response.completion for response in batch.dialogue.responses]
        samples = len(completions) // len(batch.prompts)
        for number, completion in enumerate(completions):
            task, sample = divmod(number, samples)
            prompt = batch.prompts[task]
            self._answers.append(
                _Answer(
                    task=batch.rows[task],
                    sample=sample,
                    prompt=prompt.text,
                    answer=prompt.answer,
                    completion=completion,
                )
            )

    def judge(self) -> list[PanelScores]:
        """Returns what the panel says about each task, in the order of the tasks.

        Raises `ConfigurationError` for a judge that cannot be loaded, and `DataError` if one fails whose `on_failure` is `stop`.
        """
        values = {part.name: self._values(part) for part in self._spec.parts}
        rows: dict[int, list[int]] = {}
        for number, each in enumerate(self._answers):
            rows.setdefault(each.task, []).append(number)
        return [self._judged(numbers, values) for _, numbers in sorted(rows.items())]

    def _judged(self, numbers: Sequence[int], values: Mapping[str, Sequence[float | None]]) -> PanelScores:
        judges = {name: _mean([found[number] for number in numbers]) for name, found in values.items()}
        return PanelScores(_mean([self._combined([found[n] for found in values.values()]) for n in numbers]), judges)

    def _combined(self, values: Sequence[float | None]) -> float | None:
        """Returns the panel's value for an answer, from those of the judges that have one."""
        known = [value for value in values if value is not None]
        if self._spec.combine == "mean" or not known:
            return _mean(known)
        return float(2 * sum(value >= self._spec.at_least for value in known) > len(known))

    def _values(self, part: GenerativePart) -> list[float | None]:
        """Returns a judge's value for each answer, in the order in which they were taken; None where it has none."""
        items = tuple(self._item(part, number) for number in range(len(self._answers)))
        found: dict[int, float | None] = {}
        with _loaded(part) as judge:
            for verdict in (verdict for piece in judge.judge(JudgeRequest(items)) for verdict in piece):
                value = aggregate(part, verdict)
                failed = value.reason and not value.absent
                if failed and part.on_failure == "stop":
                    each = self._answers[verdict.number]
                    raise DataError(
                        f"judge {part.name!r} failed on task {each.task}, answer {each.sample}: {value.reason}; "
                        "set `on_failure: mask` to leave such answers out"
                    )
                masked = value.absent or (failed and part.on_failure == "mask")
                found[verdict.number] = None if masked else value.value
        return [found[number] for number in range(len(items))]

    def _item(self, part: GenerativePart, number: int) -> JudgeItem:
        each = self._answers[number]
        seeds = judgement_seeds(
            part=part.name,
            count=part.judgements,
            seed=self._seed,
            branch=0,
            iteration=0,
            ordinal=each.task,
            sample=each.sample,
        )
        return judge_item(
            part=part,
            number=number,
            prompt=each.prompt,
            completion=each.completion,
            answer=each.answer,
            seeds=seeds,
        )


def panel_estimates(tasks: Sequence[PanelScores]) -> dict[str, Estimate]:
    """Returns the figures of the panel and of each judge over one task or more, with normal 95 % intervals over the tasks.

    A judge without any value has no figure.
    """
    values = {PANEL: [task.panel for task in tasks]}
    for name in tasks[0].judges:
        values[f"{JUDGE}{name}"] = [task.judges[name] for task in tasks]
    known = {name: [value for value in found if value is not None] for name, found in values.items()}
    return {name: _estimate(found) for name, found in known.items() if found}


def as_plain(judged: PanelScores) -> dict[str, Any]:
    """Returns what a panel says about a task as plain values for the ledger."""
    return {PANEL: judged.panel, "judges": dict(judged.judges)}


def _estimate(values: Sequence[float]) -> Estimate:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    half = NORMAL_95 * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half)


def _mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean of those values that there are; None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _model(part: GenerativePart) -> Path | None:
    """Returns the folder of a judge's model; None for a judge without one."""
    if not isinstance(part.model, GivenFolder):
        return None
    try:
        check_model_folder(Path(part.model.path))
    except ConfigurationError as error:
        raise ConfigurationError(f"judge {part.name!r}: {error}") from None
    return Path(part.model.path)


@contextmanager
def _loaded(part: GenerativePart) -> Iterator[Judge]:
    """Yields a judge, which frees its memory afterwards."""
    path = _model(part)
    judge = build_judge(part, None if path is None else str(path))
    try:
        yield judge
    finally:
        judge.sleep()
