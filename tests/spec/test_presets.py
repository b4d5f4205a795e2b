"""Presets: what they stand for, and how a spec's own keys change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.spec.trees import tells, tree
from yatt_core.algorithms.shaping.overlong import OverlongPenalty
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec, override_spec, parse_spec
from yatt_core.spec.presets import PRESETS
from yatt_core.spec.sections.algorithm import AlgorithmSpec

FITTING: dict[str, Any] = {
    "data__prompts_per_iteration": 64,
    "rollout__max_new_tokens": 5000,
    "model__max_positions": 9000,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_keys_and_has_their_digest(name: str) -> None:
    named = parse_spec(tree(algorithm={"preset": name}, **FITTING), "test")
    written = parse_spec(tree(algorithm=AlgorithmSpec.model_validate(PRESETS[name]).model_dump(), **FITTING), "test")
    assert named == written and named.digest == written.digest


def test_own_keys_win_over_those_of_the_preset(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    top = tmp_path / "top.yaml"
    algorithm = {"preset": "gspo", "loss": {"clip_high": 0.5}, "epochs": 2}
    base.write_text(yaml.safe_dump(tree(algorithm=algorithm, **FITTING)))
    top.write_text(yaml.safe_dump({"extends": "base.yaml", "algorithm": {"aggregation": "token_mean"}}))
    made = load_spec(top, ["algorithm.mini_batches=2"]).algorithm
    assert (made.loss.kind, made.loss.clip_low, made.loss.clip_high) == ("gspo", 3e-4, 0.5)  # type: ignore[union-attr]
    assert (made.epochs, made.mini_batches, made.aggregation) == (2, 2, "token_mean")
    other = load_spec(top, ["algorithm.preset=dr_grpo", "algorithm.loss={kind: sapo}"]).algorithm
    assert (other.advantage.kind, other.loss.kind) == ("group_mean", "sapo")


@pytest.mark.parametrize("longest", [5000, 64, 2])
def test_a_presets_numbers_of_tokens_follow_the_response_limit(longest: int) -> None:
    fitting = {**FITTING, "rollout__max_new_tokens": longest}
    shaping = parse_spec(tree(algorithm={"preset": "dapo"}, **fitting), "here").algorithm.length_penalty
    assert isinstance(shaping, OverlongPenalty) and shaping.buffer_of(longest) == max(longest // 5, 1)
    with pytest.raises(ConfigurationError, match=r"length_penalty\.buffer: 1 is not less than .*max_new_tokens 1,"):
        parse_spec(tree(algorithm={"preset": "dapo"}, **{**fitting, "rollout__max_new_tokens": 1}), "here")


def test_a_mistake_in_a_preset_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as unknown:
        parse_spec(tree(algorithm={"preset": "dapoo"}), "here")
    assert tells(str(unknown.value), "here: algorithm.preset: ", "'dapoo'", "'dapo'")
    with pytest.raises(ConfigurationError) as long:
        own = {"preset": "dapo", "length_penalty": {"buffer": 4096}}
        parse_spec(tree(algorithm=own, **{**FITTING, "rollout__max_new_tokens": 64}), "here")
    assert tells(str(long.value), "here: algorithm.length_penalty.buffer: ", "4096", "rollout.max_new_tokens 64")
    made = parse_spec(tree(), "here")
    with pytest.raises(ConfigurationError) as late:
        override_spec(made, ["algorithm.preset=gspo"], "the run")
    assert tells(str(late.value), "--set algorithm.preset=gspo", "the run")
    assert override_spec(made, ["algorithm={preset: dr_grpo}"], "the run").algorithm.advantage.kind == "group_mean"
