"""Hydra's overrides: values by its own grammar, keys that are deleted, and null for a number that is not set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.starter.peers.entries import List
from ops.starter.peers.files import read_peer_file
from ops.starter.peers.hydra import value_of
from tests.ops.starter.peers.reading import at, keys_in, of_keys
from yatt_core.errors import ConfigurationError

OPTIM = "actor_rollout_ref.actor.optim"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", 1_000),
        ("-1_0", -10),
        ("1_0.5e-1", 1.05),
        ("1_", "1_"),
        ("_1", "_1"),
        ("007", "007"),
        ("", ""),
        ("NULL", None),
        ("True", True),
        ("[1,{a:2}]", [1, {"a": 2}]),
        ("{a: {b: [1, 2_0]}, 'c d': \"x,y\"}", {"a": {"b": [1, 20]}, "c d": "x,y"}),
        ("[a b, 'it\\'s', \"q\"]", ["a b", "it's", "q"]),
        ("[${oc.select:a,1}, $(cat x)]", ["${oc.select:a,1}", "$(cat x)"]),
        ("{u:http://x:1/y}", {"u": "http://x:1/y"}),
        (r"a\,b", "a,b"),
        (r"\1", r"\1"),
        ("[[],{},'']", [[], {}, ""]),
        ("'1'", "1"),
        ("'a'b", "'a'b"),
    ],
)
def test_values_are_read_as_hydra_reads_them(text: str, value: Any) -> None:
    found = value_of(text, "line 1")
    assert (type(found), found) == (type(value), value)


def test_a_text_that_is_refused_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="line 1: the value cannot be read as Hydra reads it") as caught:
        value_of("{api_key:wp-91-zyx-sigma,u:x[1]}", "line 1")
    assert "zyx" not in str(caught.value)


def test_numbers_with_underscores_are_numbers_in_overrides_arguments_and_yaml(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("python -m verl.trainer.main_ppo data.train_batch_size=1_024 a=[1_0]")
    _, said = read_peer_file(path)
    assert [entry.value for entry in said.entries] == [1_024, [10]]
    assert at(of_keys("openrlhf-ppo", {"rollout.max_new_tokens": "1_00"}), "rollout.max_new_tokens") == 100
    with pytest.raises(ConfigurationError, match=r"line 1: train\.seed = '1_': expected a whole number"):
        of_keys("openrlhf-ppo", {"train.seed": "1_"})
    with pytest.raises(ConfigurationError, match=r"line 1: train\.seed = inf: expected a whole number"):
        of_keys("openrlhf-ppo", {"train.seed": float("inf")})


def test_null_is_a_number_that_is_not_set_where_that_is_the_default() -> None:
    keys = {
        f"{OPTIM}.lr_warmup_steps": None,
        f"{OPTIM}.lr_warmup_steps_ratio": 0.1,
        "trainer.total_training_steps": 100,
    }
    translation = of_keys("verl-ppo", {**keys, "data.train_max_samples": None, "algorithm.adv_estimator": "gae"})
    assert at(translation, "trainer.schedule.lr_warmup_iterations") == 10
    assert {f"{OPTIM}.lr_warmup_steps", "data.train_max_samples"} <= keys_in(translation, List.TAKEN)
    assert "optim.lr_warmup_steps" in keys_in(of_keys("verl-sft", {"optim.lr_warmup_steps": None}), List.TAKEN)
    of_keys("verl-ppo", {"critic.optim.lr_warmup_steps": None, "algorithm.adv_estimator": "gae"})
    with pytest.raises(ConfigurationError, match="total_epochs = None: expected a whole number"):
        of_keys("verl-ppo", {"trainer.total_epochs": None})


def test_a_deleted_key_is_read_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("python -m verl.trainer.main_ppo a=1 \\\n ~data.seed \\\n ~trainer.device=cuda")
    _, said = read_peer_file(path)
    assert [(entry.key, entry.value, entry.line) for entry in said.entries] == [
        ("a", 1, 1),
        ("~data.seed", None, 2),
        ("~trainer.device", "cuda", 3),
    ]
    path.write_text("~data.train_files\ndata.train_batch_size=8 trainer.total_epochs=1 actor_rollout_ref.rollout.n=2")
    assert read_peer_file(path)[0].name == "verl-ppo"


def test_what_becomes_of_a_deleted_key() -> None:
    translation = of_keys("verl-ppo", {"~data.seed": None, "~made.up": None, "~trainer.total_training_steps": None})
    assert {"~data.seed", "~trainer.total_training_steps"} <= keys_in(translation, List.TAKEN)
    assert keys_in(translation, List.UNKNOWN) == {"~made.up"}
    assert "~model.custom_chat_template" in keys_in(
        of_keys("verl-sft", {"~model.custom_chat_template": None}), List.TAKEN
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"~trainer.total_epochs": None}, "line 1: ~trainer.total_epochs = None: what verl .* does without this key"),
        ({"~trainer.total_epochs": 30}, "line 1: ~trainer.total_epochs = 30: what verl .* does without this key"),
        ({"~actor_rollout_ref.actor.fsdp_config": None}, "does without this key is not known here; write a value"),
        ({"data.train_files": "x", "~data": None}, "line 2: ~data = None: other lines give keys below it"),
        ({"~data.seed": 5}, "line 1: ~data.seed = 5: Hydra deletes it only if it has this value"),
    ],
)
def test_a_deletion_whose_effect_is_not_known_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        of_keys("verl-ppo", keys)
