"""Proposals are functions of spec, seed, number and history, and Optuna's learn from the history."""

from __future__ import annotations

from math import log10
from typing import Any

import pytest

from flows.sweeps.proposals import PastTrial, propose
from flows.sweeps.spec import SweepSpec, parse_sweep

SPACE = {
    "rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "kind": {"values": [{"a": 1}, "b"]},
    "size": {"low": 2, "high": 9},
}


def spec_of(**changes: Any) -> SweepSpec:
    return parse_sweep({"base": "run.yaml", "space": SPACE, **changes}, "sweep")


def history_of(spec: SweepSpec, count: int) -> list[PastTrial]:
    """Returns trials of which those with a rate near 1e-3 are the best; of some, only the first rung is known."""
    found = []
    for number in range(count):
        setting = propose(spec_of(sampler="random"), 0, number, ())
        value = -abs(log10(setting["rate"]) + 3) * spec.sign
        found.append(PastTrial(setting, {4: value, 16: value} if number % 2 else {4: value}, ended=number % 2 == 1))
    return found


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_proposal_depends_on_seed_and_number_alone(sampler: str) -> None:
    spec = spec_of(sampler=sampler)
    history = history_of(spec, 12)
    first = propose(spec, 1, 12, history)
    assert propose(spec, 1, 12, history) == first
    assert propose(spec, 2, 12, history) != first and propose(spec, 1, 13, history) != first
    assert set(first) == set(SPACE) and first["kind"] in ({"a": 1}, "b") and isinstance(first["size"], int)


def test_a_sweep_is_resumed_alike_by_every_version_of_optuna() -> None:
    """Optuna 4.9.0 and 5.0.0 both propose these."""
    spec = spec_of(sampler="tpe")
    proposed = [propose(spec, 1, number, history_of(spec, 12)) for number in (12, 13)]
    assert proposed == [{"rate": rate, "kind": {"a": 1}, "size": 6} for rate in (0.004045, 0.00395)]


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_the_estimator_learns_from_the_trials_before(goal: str) -> None:
    spec = spec_of(goal=goal)

    def distance(history: list[PastTrial]) -> float:
        return sum(abs(log10(propose(spec, 0, number, history)["rate"]) + 3) for number in range(40, 56)) / 16

    assert distance(history_of(spec, 40)) < 0.3 * distance([])


def test_trials_that_failed_or_are_under_way_are_known_too() -> None:
    spec = spec_of()
    history = history_of(spec_of(), 8)
    more = [PastTrial(history[0].setting, failed=True), PastTrial(history[1].setting, {4: 0.1}, under_way=True)]
    assert set(propose(spec, 0, 10, [*history, *more])) == set(SPACE)


def test_a_grid_is_proposed_in_order() -> None:
    spec = spec_of(sampler="grid", space={"a": {"values": [1, 2]}, "b": {"values": ["x", "y"]}})
    assert spec.count == 4
    assert [propose(spec, 0, number, ()) for number in (0, 1, 3)] == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "y"},
    ]
