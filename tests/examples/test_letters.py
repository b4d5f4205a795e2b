"""The README's own reward function and spec are the files in examples/, and they work."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from examples.letters_reward import letters_in_place
from tests.services import ROOT
from yatt_core.prompts.stream import Prompt
from yatt_core.rewards.functions import load_part
from yatt_core.spec import load_spec


def block(language: str) -> str:
    """Returns the README's first code block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize(("language", "name"), [("python", "letters_reward.py"), ("yaml", "letters.yaml")])
def test_the_readme_shows_the_file(language: str, name: str) -> None:
    assert (ROOT / "examples" / name).read_text().endswith(block(language))


def test_the_spec_names_a_reward_that_can_be_called() -> None:
    made = load_spec(ROOT / "examples" / "letters.yaml")
    assert [part.name for part in made.rewards.parts] == ["exact", "letters"]
    assert [load_part(part).unit for part in made.rewards.functions] == ["response", "response"]


@pytest.mark.parametrize(
    ("response", "value"), [("nus", 1.0), (" nus\n", 1.0), ("nos", 2 / 3), ("nuss", 0.75), ("", 0.0)]
)
def test_near_misses_earn_part_of_the_credit(response: str, value: float) -> None:
    prompt = cast(Prompt, cast(Any, SimpleNamespace(answer="nus")))
    assert letters_in_place(prompt, response) == pytest.approx(value)
