"""Property: whatever keys a file has, each is in exactly one list, and a key that no version has is named as unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.starter.peers.entries import List
from ops.starter.peers.programs import PROGRAMS
from tests.ops.starter.peers.reading import keys_in, of_keys

MADE_UP = st.from_regex(r"made_up_[a-z]{1,8}", fullmatch=True)


@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_key_is_in_exactly_one_list(program: str, data: st.DataObject) -> None:
    known: dict[str, Any] = PROGRAMS[program].defaults
    chosen = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True, max_size=40))
    unknown = data.draw(st.lists(MADE_UP, unique=True, max_size=3))
    translation = of_keys(program, {**{key: known[key] for key in chosen}, **dict.fromkeys(unknown, 1)})
    listed = [verdict.key for name in List for verdict in translation.lists[name]]
    assert sorted(listed) == sorted([*chosen, *unknown])
    assert keys_in(translation, List.UNKNOWN) == set(unknown)
    assert not {verdict.key for verdict in translation.defaults} & set(listed)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_with_all_defaults_means_the_same_as_one_without_any(program: str) -> None:
    said = of_keys(program, PROGRAMS[program].defaults)
    unsaid = of_keys(program, {})
    for path in (
        "iterations",
        "data.prompts_per_iteration",
        "algorithm",
        "objective",
        "trainer.optimizer",
        "trainer.schedule",
    ):
        assert _effective(said.tree, path) == _effective(unsaid.tree, path), path


def _effective(tree: dict[str, Any], path: str) -> Any:
    """Returns a part of a spec with YATT's defaults, so that a default that is written is the same as one that is not."""
    from yatt_core.spec import parse_spec

    sampled = "objective" not in tree
    rewards = {"rewards": {"parts": [{"name": "score", "function": "exact_match"}]}} if sampled else {}
    spec = parse_spec({**tree, "name": "same", **rewards}, "spec").model_dump(mode="json")
    for part in path.split("."):
        spec = spec[part]
    return spec
