"""Whether a run is exact where that depends on its devices: found once the actors are loaded, and said once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flows.driver.actors_start import ActorsStart
from tests.inputs.example_specs import SPELL, run_spec


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
