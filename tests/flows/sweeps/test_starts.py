"""Which trials share a beginning: keys that forks cannot change have starts of their own."""

from __future__ import annotations

from typing import Any

from flows.sweeps.spec import parse_sweep
from flows.sweeps.starts import SharedStart, Starts
from tests.flows.sweeps.support import RATE, RUN
from yatt_core.spec import parse_spec


def starts_of(**space: Any) -> Starts:
    tree = {"base": "run.yaml", "space": {key.replace("__", "."): each for key, each in space.items()}}
    return Starts.of(parse_spec(RUN, "run"), parse_sweep(tree, "sweep").domains)


def test_keys_of_model_data_and_sft_have_starts_of_their_own() -> None:
    starts = starts_of(
        model__hidden_size={"low": 8, "high": 16},
        sft={"values": [None, {"demonstrations": 10}]},
        data__held_out={"values": [5, 6]},
        algorithm__kl={"values": [None, {"coefficient": 0.1}]},
        trainer__optimizer__learning_rate={"low": 1e-4, "high": 1e-2},
        rollout__samples_per_prompt={"values": [4, 8]},
        data__prompts_per_iteration={"values": [8, 16]},
    )
    assert starts.keys == ("model.hidden_size", "sft", "data.held_out", "algorithm.kl")


def test_trials_with_the_same_values_of_these_share_a_start_for_each_seed() -> None:
    starts = starts_of(
        model__hidden_size={"values": [8, 16]}, trainer__optimizer__learning_rate={"low": 1e-4, "high": 1e-2}
    )
    small, other, large = ({"model.hidden_size": size, RATE: rate} for size, rate in ((8, 1e-3), (8, 1e-4), (16, 1e-3)))
    assert starts.start(small, 0) == starts.start(other, 0) != starts.start(large, 0)
    names = {starts.start(setting, seed).name for setting in (small, other, large) for seed in (0, 1)}
    assert len(names) == 4 and SharedStart(3, {}).name == "start/3"
    assert starts.own_overrides(small) == [f"{RATE}=0.001"]
    assert starts.start(large, 7).overrides() == ["model.hidden_size=16", "seed=7"]


def test_a_setting_that_no_run_can_have_is_refused_with_the_reason() -> None:
    starts = starts_of(algorithm__mini_batches={"values": [1, 2]}, data__prompts_per_iteration={"values": [1, 8]})
    assert starts.refusal({"algorithm.mini_batches": 2, "data.prompts_per_iteration": 8}) is None
    reason = starts.refusal({"algorithm.mini_batches": 2, "data.prompts_per_iteration": 1})
    assert reason is not None and "algorithm.mini_batches" in reason
