"""What the parameters of a window ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flows.schedule.parameters import WindowParameters, WindowPlan, parameters_text
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError
from yatt_core.spec import override_spec


@pytest.mark.parametrize(
    ("parameters", "plan"),
    [
        (WindowParameters(), WindowPlan(False, (), None)),
        (WindowParameters(run="new", window="1h30m"), WindowPlan(True, (), timedelta(hours=1.5))),
        (
            WindowParameters(overrides={"trainer.optimizer.learning_rate": 3e-4}, iterations=50),
            WindowPlan(False, ("trainer.optimizer.learning_rate=0.0003", "iterations=50"), None),
        ),
        (
            WindowParameters(
                overrides={"rollout.engine": {"kind": "virtual", "instances": 1}, "notes": ["é: 'x'", None]}
            ),
            WindowPlan(False, ('rollout.engine={"kind": "virtual", "instances": 1}', "notes=[\"é: 'x'\", null]"), None),
        ),
    ],
)
def test_the_plan_of_parameters(parameters: WindowParameters, plan: WindowPlan) -> None:
    assert parameters.plan() == plan


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.optimizer.learning_rate", 3e-07),
        ("data.system_prompt", "Answer: 7 # 'now'\n\"yes\" 😀"),
        ("data.system_prompt", "1e-3"),
        ("rollout.temperature", 1),
    ],
)
def test_an_overridden_value_keeps_its_type_and_text(key: str, value: Any) -> None:
    changes = WindowParameters(overrides={key: value}).plan().changes
    found: Any = override_spec(toy_spec(), changes, "the spec").model_dump(mode="json")
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (WindowParameters(overrides={"": 1}), ["overrides: ''"]),
        (WindowParameters(overrides={"a=b": 1, "c..d": 2}), ["'a=b'", "'c..d'"]),
        (WindowParameters(window="0h"), ["window: '0h'"]),
        (
            WindowParameters(window="8m8h", iterations=2, overrides={"iterations": 3}),
            ["window: '8m8h'", "iterations: "],
        ),
    ],
)
def test_all_mistakes_are_reported_at_once(parameters: WindowParameters, says: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parameters.plan()
    assert all(word in str(refused.value) for word in says)


def test_only_given_parameters_are_shown() -> None:
    assert WindowParameters().given() == {} and parameters_text({}) == ""
    given = WindowParameters("new", {"trainer.optimizer.learning_rate": 3e-4}, 50, "2h").given()
    assert parameters_text(given) == "trainer.optimizer.learning_rate=0.0003, run=new, iterations=50, window=2h"
