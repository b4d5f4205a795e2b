"""Rewards of weights on held-out prompts, with a real tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from flows.soups.evaluation import RewardMeter
from tests.flows.soups.support import RUN
from yatt_core.input_building.materialise import initial_model, materialise
from yatt_core.spec import parse_spec


def test_the_same_weights_have_the_same_rewards_and_others_have_others(tmp_path: Path) -> None:
    spec = parse_spec(RUN, "run")
    materialise(spec, tmp_path)
    weights = load_file(Path(initial_model(spec, tmp_path)) / "model.safetensors")
    meter = RewardMeter(spec, "brew-1", tmp_path, samples=8)
    first = meter.measure(weights)
    assert first.keys() == {"exact", "brief", "long"} and meter.prompts == 5
    # A response has up to 8 tokens; those of at most 3 and of at least 6 are rewarded.
    assert 0.0 < first["long"] <= 1.0 and first["brief"] + first["long"] <= 1.0
    sharp = meter.measure({name: 40 * tensor for name, tensor in weights.items()})
    assert sharp != first
    assert meter.measure(weights) == first == RewardMeter(spec, "brew-1", tmp_path, samples=8).measure(weights)
    assert RewardMeter(spec, "brew-1", tmp_path, samples=1).measure(weights) != first


@pytest.mark.verify
def test_the_size_of_a_decode_batch_changes_nothing(tmp_path: Path) -> None:
    spec = parse_spec({**RUN, "rollout": {"max_new_tokens": 8, "batch_samples": 8}}, "run")
    materialise(spec, tmp_path)
    weights = load_file(Path(initial_model(spec, tmp_path)) / "model.safetensors")
    whole = parse_spec(RUN, "run")
    assert RewardMeter(spec, "brew-1", tmp_path, 4).measure(weights) == RewardMeter(
        whole, "brew-1", tmp_path, 4
    ).measure(weights)
