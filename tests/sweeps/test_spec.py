"""The spec of a sweep: files and options with one model behind them, and mistakes with file, key and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.sweeps.spec import AshaSpec, changed_spec, load_sweep, overrides_of
from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import yaml_text

QUICKSTART = ROOT / "configs" / "quickstart.yaml"
RATE = "trainer.optimizer.learning_rate"
SPACE = {"space": {RATE: {"low": 1e-5, "high": 1e-3, "log": True}}}


def test_the_example_is_sound() -> None:
    sweep, run = load_sweep(ROOT / "examples" / "sweep" / "sweep.yaml")
    assert sweep.count == 16 and sweep.rungs(run) == (20, 80, 260) and sweep.seeds_of(run) == (0,)


def test_options_say_the_same_as_a_file(tmp_path: Path) -> None:
    tree = {"base": str(QUICKSTART), **SPACE, "asha": {"reduction": 3}, "trials": 5, "seeds": [1, 2]}
    (tmp_path / "sweep.yaml").write_text(yaml_text(tree))
    of_file, run = load_sweep(tmp_path / "sweep.yaml", overrides=["iterations=100"])
    options = {**SPACE, "asha": {"reduction": 3}, "trials": 5, "seeds": [1, 2]}
    of_options, same = load_sweep(QUICKSTART, options, ["iterations=100"])
    assert of_options.model_dump(exclude={"base"}) == of_file.model_dump(exclude={"base"})
    assert (run, run.iterations) == (same, 100)


def test_options_replace_keys_of_a_file(tmp_path: Path) -> None:
    tree = {"base": str(QUICKSTART), **SPACE, "asha": {"reduction": 3}, "trials": 5}
    (tmp_path / "sweep.yaml").write_text(yaml_text(tree))
    more: dict[str, Any] = {
        "space": {"rollout.temperature": {"values": [0.7, 1.0]}},
        "asha": {"first_rung": 50},
        "trials": 7,
    }
    sweep, run = load_sweep(tmp_path / "sweep.yaml", more)
    assert set(sweep.space) == {RATE, "rollout.temperature"} and sweep.trials == 7
    assert sweep.asha == AshaSpec(reduction=3, first_rung=50) and sweep.rungs(run) == (100, 260)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "space: expected at least 1 item"),
        ({**SPACE, "trails": 3}, "trails: unknown key; did you mean 'trials'"),
        ({"space": {RATE: {"low": 1, "hihg": 2}}}, f"space.{RATE}.hihg: unknown key; did you mean 'high'"),
        ({"space": {"trainer.optimizer.learning_rat": {"values": [1]}}}, "did you mean 'learning_rate'"),
        ({"space": {"rollout.temperature": {"values": [-1, -2]}}}, "space.rollout.temperature"),
        ({"space": {"iterations": {"values": [5, 9]}}}, "space.iterations: cannot be swept"),
        ({"space": {"evaluation.every": {"values": [5, 9]}}}, "space.evaluation.every: cannot be swept"),
        ({**SPACE, "sampler": "grid"}, "number of points"),
        (
            {"space": {"rollout.temperature": {"values": [1, 2]}}, "sampler": "grid", "trials": 3},
            "trials: 3 is more than",
        ),
        ({**SPACE, "metric": "seconds/collect"}, "depends on timing"),
        ({**SPACE, "metric": "accuracies"}, "did you mean 'accuracy'"),
        ({**SPACE, "seeds": [1, 1]}, "seeds: each seed can be listed once only"),
        ({**SPACE, "asha": {"first_rung": 200}}, "no rung before the end"),
    ],
)
def test_mistakes_name_the_file_and_the_key(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_sweep(QUICKSTART, options)
    assert str(caught.value).startswith(str(QUICKSTART)) and said in str(caught.value)


def test_a_value_that_suits_only_some_others_is_no_mistake() -> None:
    # Two optimizer steps of one prompt each need two prompts; the base has 64.
    space = {"data.prompts_per_iteration": {"values": [1, 64]}, "algorithm.mini_batches": {"values": [1, 2]}}
    sweep, _ = load_sweep(QUICKSTART, {"space": space})
    assert set(sweep.space) == set(space)


def test_a_setting_is_written_so_that_the_spec_reads_the_same_values() -> None:
    _, run = load_sweep(QUICKSTART, SPACE)
    setting = {RATE: 1e-05, "trainer.schedule": {"kind": "constant"}, "sft": None, "rollout.temperature": 1}
    changed = changed_spec(run, setting)
    assert (changed.trainer.optimizer.learning_rate, changed.trainer.schedule.kind, changed.sft) == (
        1e-05,
        "constant",
        None,
    )
    assert overrides_of({"a": "no"}) == ['a="no"']


@pytest.mark.parametrize(("section", "value"), [("asha", True), ("space", [RATE])])
def test_a_section_that_is_no_mapping_is_a_mistake_also_with_options(tmp_path: Path, section: str, value: Any) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml_text({"base": str(QUICKSTART), **SPACE, section: value}))
    options: dict[str, Any] = {"space": {}, "asha": {"reduction": 3}}
    with pytest.raises(ConfigurationError, match=rf"sweep\.yaml: {section}: expected keys and values"):
        load_sweep(tmp_path / "sweep.yaml", options)
