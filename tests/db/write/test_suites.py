"""Evaluations of suites in the ledger: written once for the same weights, with a link of the audit chain, by whoever is first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from db.core.engine import Fence
from db.core.errors import RunNotFound
from db.ledger import Ledger
from db.write.suites import EVALUATED, SuiteRow


def row(run: str, iteration: int = 2, digest: str = "suite") -> SuiteRow:
    results = [{"prompt_id": "s/0", "source": 0, "samples": 1, "correct": 1, "reward": 1.0, "majority": None}]
    figures = {"accuracy": 1.0, "tasks": 1}
    return SuiteRow(run, "math", digest, {"name": "math"}, 0, iteration, f"w{iteration}", figures, results, "ann", 0.5)


@pytest.mark.postgresql
def test_the_same_weights_on_the_same_suite_are_one_row(ledger: Ledger, run: str) -> None:
    first = ledger.suites.add(row(run))
    assert ledger.suites.add(replace(row(run), by="bob", figures={})) == first == ledger.suites.find(run, "suite", "w2")
    second = ledger.suites.add(row(run, 4))
    other = ledger.suites.add(row(run, digest="changed"))
    assert [each.number for each in (first, second, other)] == [1, 2, 3]
    assert ledger.suites.of(run) == ledger.suites.of(run, "math") == [first, second, other]
    assert ledger.suites.of(run, "words") == [] and ledger.suites.find(run, "suite", "w9") is None
    links = ledger.events.of_kind(run, EVALUATED)
    assert [link.seq for link in links] == [first.seq, second.seq, other.seq]
    assert links[0].body["weights_digest"] == "w2" and ledger.events.verify(run) is None


def test_an_unknown_run_has_no_evaluations(ledger: Ledger) -> None:
    with pytest.raises(RunNotFound):
        ledger.suites.add(row("nothing-1"))


@pytest.mark.postgresql
def test_concurrent_evaluations_of_the_same_weights_are_one(ledger: Ledger, run: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: ledger.suites.add(replace(row(run), by=f"worker {n}")), range(4)))
    assert len({each.by for each in found}) == 1 and len(ledger.suites.of(run)) == 1


def test_a_deleted_run_takes_its_evaluations_along(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.suites.add(row(run))
    ledger.deletions.delete(fence, "ann", "a mistake", {})
    assert ledger.suites.of(run) == []
