"""What a pipeline does next: a state machine over its jobs, without any I/O.

    a job is ready once all jobs that it needs are done
    runs that are ready at the same time are driven side by side; other jobs are done one after another
    a job that waits for people, or has failed, holds up only those that need it

Consumes what the jobs have reached; produces the next `Step`. A job that was killed is not among the facts, so it begins again.
"""

from __future__ import annotations

from dataclasses import dataclass

from flows.pipelines.spec import PipelineSpec, TrainJob


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """What the jobs have reached.

    done: finished now, or skipped because an earlier attempt had the same inputs.
    waiting: asked people in this session, who have not decided yet.
    failed: failed in this session.
    """

    done: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Start:
    """Do these jobs; several only if all of them are runs."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Stop, since people have to decide these jobs first."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop, since jobs have failed."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Stop, since everything is done."""


Step = Start | Wait | Fail | Finish


def ready(spec: PipelineSpec, facts: PipelineFacts) -> list[str]:
    """Returns the jobs that can begin, in order."""
    begun = facts.done | facts.waiting | facts.failed
    return [name for name in spec.order() if name not in begun and spec.needs(name) <= facts.done]


def next_step(spec: PipelineSpec, facts: PipelineFacts) -> Step:
    """Returns what to do next."""
    free = ready(spec, facts)
    if free:
        runs = tuple(name for name in free if isinstance(spec.jobs[name], TrainJob))
        return Start(runs if free[0] in runs else (free[0],))
    order = spec.order()
    if facts.failed:
        return Fail(tuple(name for name in order if name in facts.failed))
    if facts.waiting:
        return Wait(tuple(name for name in order if name in facts.waiting))
    return Finish()
