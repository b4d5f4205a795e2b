"""The plan of a pipeline: whatever jobs do, each begins once, after those that it needs, and the pipeline comes to an end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flows.pipelines.plan import Fail, Finish, PipelineFacts, Start, Wait, next_step
from flows.pipelines.spec import PipelineSpec, parse_pipeline

OUTCOMES = ("done", "waiting", "failed")


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineSpec:
    count = draw(st.integers(1, 7))
    jobs: dict[str, Any] = {}
    for number in draw(st.permutations(range(count))):
        needs = draw(st.sets(st.integers(0, max(0, number - 1)))) if number else set[int]()
        own = [f"j{each}" for each in sorted(needs)]
        jobs[f"j{number}"] = {"kind": draw(st.sampled_from(["train", "soup"])), "spec": "run.yaml", "needs": own}
    return parse_pipeline({"name": "p", "jobs": jobs}, "pipeline")


@given(pipelines(), st.data())
def test_every_job_begins_once_after_what_it_needs_and_the_end_says_what_became_of_them(
    spec: PipelineSpec, data: st.DataObject
) -> None:
    said: dict[str, set[str]] = {outcome: set() for outcome in OUTCOMES}
    begun: list[str] = []
    while isinstance(step := next_step(spec, PipelineFacts(*(frozenset(said[each]) for each in OUTCOMES))), Start):
        assert len(step.jobs) == 1 or all(spec.jobs[name].kind == "train" for name in step.jobs)
        for name in step.jobs:
            assert spec.needs(name) <= said["done"]
            begun.append(name)
            said[data.draw(st.sampled_from(OUTCOMES))].add(name)
    assert len(begun) == len(set(begun)) and all(
        spec.needs(name) - said["done"] for name in spec.jobs if name not in begun
    )
    match step:
        case Finish():
            assert said["done"] == spec.jobs.keys()
        case Wait(jobs):
            assert set(jobs) == said["waiting"] and not said["failed"]
        case Fail(jobs):
            assert set(jobs) == said["failed"] and jobs


def test_runs_that_are_ready_together_are_driven_together_and_nothing_else_is() -> None:
    run = {"kind": "train", "spec": "run.yaml"}
    soup = {"kind": "soup", "spec": "soup.yaml"}
    spec = parse_pipeline({"name": "p", "jobs": {"a": run, "s": soup, "b": run, "c": run | {"needs": ["a"]}}}, "p")
    assert next_step(spec, PipelineFacts()) == Start(("a", "b"))
    assert next_step(spec, PipelineFacts(frozenset("ab"))) == Start(("s",))
    assert next_step(spec, PipelineFacts(frozenset("abs"))) == Start(("c",))
