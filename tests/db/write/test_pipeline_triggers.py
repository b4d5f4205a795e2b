"""What triggers have seen, in the ledger: each content once, and one run for all that is remembered, whoever is first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from sqlalchemy.exc import IntegrityError

from db.core.errors import PipelineNotFound
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from db.write.pipeline_triggers import TriggerObservation
from db.write.pipelines import FAILED, FINISHED, RUNNING, WAITING, NewPipeline, insert_pipeline
from tests.db.tools import holder

NEW = NewPipeline("line", "digest", {"name": "line"}, "/", "ann")


def end(ledger: Ledger, pipeline: str, state: str) -> None:
    ledger.pipelines.release(ledger.leases.take(of_pipeline(pipeline), holder("first"), 60), state, "")


@pytest.fixture
def deployed(ledger: Ledger) -> Ledger:
    ledger.pipeline_triggers.deploy("line", "/line.yaml", "ann")
    return ledger


@pytest.mark.postgresql
def test_each_content_of_a_trigger_is_seen_once_and_the_first_begins_nothing(deployed: Ledger) -> None:
    triggers = deployed.pipeline_triggers
    seen = [
        triggers.see("line", TriggerObservation("t", content, f"is {content}", content))
        for content in ("a", "a", "b", "c", "b", "a")
    ]
    assert seen == [False, False, True, True, False, False]
    assert [(row.number, row.content, row.pipeline) for row in triggers.seen("line")] == [
        (1, "a", None),
        (2, "b", None),
        (3, "c", None),
    ]
    assert [row.content for row in triggers.remembered("line")] == ["b", "c"]
    triggers.see("line", TriggerObservation("t", "b", "is b", "touched"))
    assert [row.signature for row in triggers.seen("line")] == ["a", "touched", "c"]


@pytest.mark.postgresql
def test_one_run_begins_for_all_that_is_remembered(deployed: Ledger) -> None:
    triggers = deployed.pipeline_triggers
    assert triggers.begin(NEW) is None
    for trigger in ("t", "u"):
        for content in ("a", "b"):
            triggers.see("line", TriggerObservation(trigger, content, f"{trigger} is {content}"))
    begun = triggers.begin(NEW)
    assert begun is not None and begun.id == "line-1"
    assert [row.why for row in triggers.of("line-1")] == ["t is b", "u is b"] and triggers.begin(NEW) is None


@pytest.mark.parametrize(("state", "begins"), [(RUNNING, False), (WAITING, False), (FAILED, True), (FINISHED, True)])
def test_a_run_that_goes_on_or_waits_is_followed_later(deployed: Ledger, state: str, begins: bool) -> None:
    deployed.pipelines.create(NEW)
    if state != RUNNING:
        end(deployed, "line-1", state)
    for content in ("a", "b"):
        deployed.pipeline_triggers.see("line", TriggerObservation("t", content, content))
    begun = deployed.pipeline_triggers.begin(NEW)
    assert (begun is not None and begun.id == "line-2") == begins
    if not begins:
        end(deployed, "line-1", FINISHED)
        begun = deployed.pipeline_triggers.begin(NEW)
        assert begun is not None and begun.id == "line-2"


@pytest.mark.postgresql
def test_concurrent_watchers_begin_one_run(deployed: Ledger) -> None:
    triggers = deployed.pipeline_triggers
    triggers.see("line", TriggerObservation("t", "a", "a"))

    def watch(_: int) -> str | None:
        triggers.see("line", TriggerObservation("t", "b", "b"))
        begun = triggers.begin(NEW)
        return None if begun is None else begun.id

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(watch, range(12)))
    assert [each for each in found if each] == ["line-1"]
    assert len(triggers.seen("line")) == 2 and len(deployed.pipelines.newest()) == 1


def test_a_first_run_that_somebody_creates_at_the_same_moment_is_followed(deployed: Ledger) -> None:
    for content in ("a", "b"):
        deployed.pipeline_triggers.see("line", TriggerObservation("t", content, content))
    taken = IntegrityError("INSERT", {}, Exception("line-1 is taken"))
    with mock.patch(
        "db.write.pipeline_triggers.insert_pipeline", side_effect=[taken, mock.DEFAULT], wraps=insert_pipeline
    ) as insert:
        begun = deployed.pipeline_triggers.begin(NEW)
    assert begun is not None and begun.id == "line-1" and insert.call_count == 2


def test_a_deployment_is_replaced_and_keeps_what_was_seen(deployed: Ledger) -> None:
    deployed.pipeline_triggers.see("line", TriggerObservation("t", "a", "a"))
    deployed.pipeline_triggers.deploy("line", "/other.yaml", "bob")
    row = deployed.pipeline_triggers.deployment("line")
    assert (row.file, row.by) == ("/other.yaml", "bob") and len(deployed.pipeline_triggers.seen("line")) == 1
    with pytest.raises(PipelineNotFound, match="'other' is not deployed"):
        deployed.pipeline_triggers.deployment("other")


def test_the_run_that_finished_last_is_found(ledger: Ledger) -> None:
    assert ledger.pipelines.last_finished("line") is None and ledger.pipelines.last_of("line") is None
    for number, state in enumerate([FINISHED, FAILED, FINISHED, WAITING], 1):
        ledger.pipelines.create(NewPipeline("line", str(number), {}, "/", "ann"))
        end(ledger, f"line-{number}", state)
    finished = ledger.pipelines.last_finished("line")
    last = ledger.pipelines.last_of("line")
    assert finished is not None and last is not None and (finished.id, last.id) == ("line-3", "line-4")
