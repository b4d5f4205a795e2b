"""Whether a run is exact where that depends on its devices: found once the actors are loaded, and said once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flows.driver.actors_start import ActorsStart
from flows.phases.recovery import check_environment
from tests.inputs.example_specs import SPELL, run_spec
from yatt_core.errors import DriftError


@pytest.mark.parametrize("exact", ["auto", False])
def test_engines_that_batch_by_chance_make_a_run_inexact(exact: bool | str) -> None:
    said: list[str] = []
    context: Any = SimpleNamespace(spec=run_spec(SPELL, exact=exact), observer=SimpleNamespace(warned=said.append))
    actors: Any = SimpleNamespace(batches_by_chance=False)
    nothing: Any = None
    begun = ActorsStart(lambda: None)
    begun.enter_branch(context, actors, nothing)
    begun._note_exactness()
    assert (begun.is_exact, said) == (exact == "auto", [])
    actors.batches_by_chance = True
    for _ in range(2):
        begun._note_exactness()
        assert not begun.is_exact
    assert len(said) == (exact == "auto")


@pytest.mark.parametrize(("invariant", "bits"), [(True, "batch-invariant kernels"), (False, "fixed decode batches")])
def test_what_makes_responses_repeat_is_among_the_facts_of_a_commit(invariant: bool, bits: str) -> None:
    context: Any = SimpleNamespace(spec=run_spec(SPELL))
    declared = [{"batch_invariant": invariant}]
    actors: Any = SimpleNamespace(rollout_capabilities=lambda: declared)
    nothing: Any = None
    begun = ActorsStart(lambda: None)
    begun.enter_branch(context, actors, nothing)
    begun.environment = {"layout": "torch x 1"}
    begun._note_rollout_bits()
    assert begun.environment == {"layout": "torch x 1", "rollout bits": bits}


def test_other_rollout_bits_are_marked_but_hinder_no_replay_of_updates() -> None:
    """Updates are repeated from responses that are durable; another library still refuses them."""
    events = list[dict[str, Any]]()
    ledger = SimpleNamespace(events=SimpleNamespace(append=lambda run, kind, body, fence: events.append(body)))
    context = SimpleNamespace(
        run="r-1", accept_drift=False, ledger=ledger, fence=None, observer=SimpleNamespace(warned=lambda line: None)
    )
    environment = {"torch": "2.13.0", "rollout bits": "fixed decode batches"}
    session: Any = SimpleNamespace(context=context, start=SimpleNamespace(environment=environment, is_exact=True))
    state: Any = SimpleNamespace(iteration=3, environment=environment | {"rollout bits": "not exact"})
    check_environment(session, state, restored=1)
    assert events == [{"at": 3, "replayed": 2, "changes": {"rollout bits": ["not exact", "fixed decode batches"]}}]
    state.environment = {"torch": "2.12.0"}
    with pytest.raises(DriftError, match=r"torch: 2\.12\.0 -> 2\.13\.0"):
        check_environment(session, state, restored=1)
    state.environment = {"torch": "2.13.0"}
    check_environment(session, state, restored=1)
    assert len(events) == 1, "an older commit did not record it"
