"""Which stage of a run an iteration belongs to, and the learning rate of each of its steps.

Both are functions of the iteration alone, so that a rollback or a skipped iteration shifts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_workloads.retrieval.settings import TAUGHT, RetrievalSettings

WARM_UP = 20
"""Steps in which a stage's learning rate rises."""
LOWEST = 0.02
"""Share of the peak that the learning rate never falls below."""


@dataclass(frozen=True)
class LearningStage:
    """Some iterations in a row that train one module.

    trains: `student`, or `cross`, the cross-encoder.
    method: how a student is trained; empty for the cross-encoder.
    start: the last iteration before it.
    iterations: how many it has.
    """

    trains: str
    method: str
    start: int
    iterations: int


def stages_of(settings: RetrievalSettings, iterations: int) -> tuple[LearningStage, ...]:
    """Returns the stages of a run of so many iterations."""
    if settings.method not in TAUGHT:
        return (LearningStage("student", settings.method, 0, iterations),)
    stages = [LearningStage("student", "self", 0, settings.first)]
    if settings.method == "cascade":
        stages.append(LearningStage("cross", "", settings.first, settings.cross))
    before = settings.first + settings.cross
    stages.append(LearningStage("student", settings.method, before, iterations - before))
    return tuple(stages)


def stage_number(stages: tuple[LearningStage, ...], iteration: int) -> int:
    """Returns the number of the stage that an iteration, from 1, belongs to."""
    return max(number for number, stage in enumerate(stages) if stage.start < iteration)


def learning_rate(settings: RetrievalSettings, stage: LearningStage, iteration: int, step: int) -> float:
    """Returns the learning rate of a step, from 0, of an iteration: it rises linearly, then falls linearly."""
    peak = settings.rate * (settings.cross_rate if stage.trains == "cross" else 1.0)
    place = (iteration - stage.start - 1) * settings.steps + step
    total = stage.iterations * settings.steps
    return peak * min(1.0, (place + 1) / WARM_UP) * max(LOWEST, 1 - place / total)
