"""Keys of earlier versions, critics, schedules and held-out tasks of the peers: what is read of them, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.peers.entries import List
from tests.ops.starter.peers.reading import at, keys_in, of_keys
from yatt_core.errors import ConfigurationError

ACTOR = "actor_rollout_ref.actor"
GRPO = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}
OLDER = "algorithm.rollout_is"


@pytest.mark.parametrize(
    ("keys", "correction"),
    [
        ({f"{ACTOR}.tis_imp_ratio_cap": 2.0}, {"by": "token", "kind": "truncate", "cap": 2.0}),
        ({f"{ACTOR}.tis_imp_ratio_cap": -1}, None),
        ({OLDER: True, f"{OLDER}_threshold": 2.0}, {"by": "token", "kind": "truncate", "cap": 2.0}),
        (
            {OLDER: True, f"{OLDER}_threshold": 4.0, f"{OLDER}_level": "geometric", f"{OLDER}_mode": "mask"},
            {"by": "sequence_mean", "kind": "mask", "low": 0.25, "high": 4.0},
        ),
        ({OLDER: False, f"{OLDER}_threshold": 2.0}, None),
        ({f"{OLDER}_threshold": 2.0}, None),
        (
            {OLDER: False, "algorithm.rollout_correction.rollout_is": "token"},
            {"by": "token", "kind": "truncate", "cap": 2.0},
        ),
    ],
)
def test_the_corrections_of_older_verl(keys: dict[str, Any], correction: dict[str, Any] | None) -> None:
    translation = of_keys("verl-ppo", {**GRPO, **keys})
    written = at(translation, "algorithm.importance_correction")
    assert (None if written is None else {"by": "token", **written}) == correction
    assert not translation.lists[List.WITHOUT_COUNTERPART] and not translation.lists[List.UNKNOWN]


def test_the_critic_of_verl_is_clipped_as_verls_and_its_schedule_is_said() -> None:
    schedule = {"critic.optim.lr_scheduler_type": "cosine", "critic.optim.lr_warmup_steps": 5}
    keys = {"critic.optim.clip_grad": 0.5, "critic.ppo_epochs": 1, "critic.loss_agg_mode": "seq-mean-token-mean"}
    translation = of_keys("verl-ppo", {**keys, **schedule})
    assert at(translation, "algorithm.critic.optimizer.max_grad_norm") == 0.5
    assert keys_in(translation, List.DIFFERENT) == {*schedule, "critic.loss_agg_mode"}
    without = of_keys("verl-ppo", {**GRPO, **keys, **schedule, "critic.fsdp.param_offload": True})
    assert at(without, "algorithm.critic") is None
    assert not without.lists[List.DIFFERENT] and not without.lists[List.WITHOUT_COUNTERPART]


def test_the_critic_of_openrlhf_has_its_optimizer() -> None:
    keys = {"critic.max_norm": 0.5, "critic.adam.eps": 1e-6, "critic.min_lr_ratio": 0.2}
    translation = of_keys("openrlhf-ppo", keys)
    assert at(translation, "algorithm.critic.optimizer.max_grad_norm") == 0.5
    assert at(translation, "algorithm.critic.optimizer.epsilon") == 1e-6
    (verdict,) = translation.lists[List.WITHOUT_COUNTERPART]
    assert verdict.why == "the critic's rate is constant here"
    rloo = {"algo.advantage.estimator": "rloo", "rollout.n_samples_per_prompt": 8}
    assert keys_in(of_keys("openrlhf-ppo", {**keys, **rloo}), List.TAKEN) == {*keys, *rloo}


def test_megatron_has_a_schedule_of_its_own() -> None:
    keys = {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.optim.lr": 1e-6, f"{ACTOR}.optim.lr_decay_style": "cosine"}
    translation = of_keys("verl-ppo", {**GRPO, **keys, f"{ACTOR}.optim.min_lr": 1e-7})
    assert at(translation, "trainer.schedule.kind") == "cosine"
    assert at(translation, "trainer.schedule.min_lr_ratio") == pytest.approx(0.1)


def test_the_older_names_of_a_correction_and_of_lengths_in_trl() -> None:
    capped = of_keys("trl-grpo", {"use_vllm": True, "vllm_importance_sampling_cap": 2.0})
    assert at(capped, "algorithm.importance_correction.high") == 2.0
    assert at(of_keys("trl-sft", {"max_seq_length": 512}), "data.max_prompt_tokens") == 512
    assert "max_prompt_length" in keys_in(of_keys("trl-dpo", {"max_prompt_length": 256}), List.DIFFERENT)


def test_what_changes_what_trl_learns_is_no_matter_of_speed() -> None:
    keys = {"average_tokens_across_devices": False, "group_by_length": True, "disable_dropout": False}
    assert keys_in(of_keys("trl-dpo", keys), List.DIFFERENT) == set(keys)


def test_the_files_of_older_verl_for_demonstrations() -> None:
    keys = {
        "model.partial_pretrain": "/models/small",
        "optim.lr_scheduler": "cosine",
        "optim.warmup_steps_ratio": 0.1,
        "data.train_files": "/data/train.parquet",
        "data.prompt_key": "extra_info",
        "data.prompt_dict_keys": ["question"],
        "data.response_key": "answer",
        "data.apply_chat_template_kwargs.enable_thinking": False,
        "trainer.total_training_steps": 20,
    }
    translation = of_keys("verl-sft", keys, model=None, sources=())
    assert at(translation, "model.path") == "/models/small"
    assert at(translation, "trainer.schedule") == {"kind": "cosine", "lr_warmup_iterations": 2}
    assert at(translation, "data.chat_template_kwargs") == {"enable_thinking": False}
    (source,) = at(translation, "data.sources")
    assert (source["prompt_field"], source["answer_field"]) == ("extra_info.question", "answer")
    assert keys_in(translation, List.TAKEN) | keys_in(translation, List.DIFFERENT) == set(keys)
    turns = {
        "data.multiturn.enable": True,
        "data.multiturn.messages_key": "turns",
        "data.train_max_samples": 64,
        "data.truncation": "right",
    }
    part = {"data.train_files": "/data/train.parquet", "trainer.total_epochs": 2, "data.train_batch_size": 32}
    translation = of_keys("verl-sft", {**turns, **part}, sources=())
    assert at(translation, "data.sources")[0]["prompt_field"] == "turns"
    assert at(translation, "iterations") == 4
    assert {"data.train_max_samples", "data.truncation"} <= keys_in(translation, List.DIFFERENT)


def test_older_names_of_openrlhf_that_are_of_actor_and_critic() -> None:
    translation = of_keys("openrlhf-ppo", {"l2": 0.1, "max_norm": 0.5, "lr_warmup_ratio": 0.0})
    for path in ("trainer.optimizer", "algorithm.critic.optimizer"):
        assert at(translation, f"{path}.weight_decay") == 0.1
        assert at(translation, f"{path}.max_grad_norm") == 0.5
    assert not translation.lists[List.UNKNOWN]
    now = of_keys("openrlhf-ppo", {"actor.adam.weight_decay": 0.1, "actor.max_norm": 0.5})
    assert at(now, "algorithm.critic.optimizer.weight_decay") is None


def test_held_out_tasks_are_answered_as_openrlhf_says() -> None:
    said = of_keys("openrlhf-ppo", {"eval_temperature": 0.7, "eval.n_samples_per_prompt": 2})
    assert at(said, "evaluation.sampling") == {"samples": 2, "temperature": 0.7}
    assert at(of_keys("openrlhf-ppo", {"eval.temperature": 0.0}), "evaluation.sampling") is None
    assert at(of_keys("openrlhf-ppo", {}), "evaluation.sampling") is None


def test_a_key_that_says_nothing_has_its_counterpart() -> None:
    assert keys_in(of_keys("trl-grpo", {"delta": None, "min_p": None}), List.TAKEN) == {"delta", "min_p"}


@pytest.mark.parametrize("program", ["openrlhf-ppo", "openrlhf-sft", "openrlhf-dpo", "openrlhf-rm"])
def test_the_precision_of_openrlhf_is_taken_under_each_of_its_names(program: str) -> None:
    for key, value in (("bf16", True), ("param_dtype", "bf16"), ("ds.param_dtype", "bf16")):
        (said,) = of_keys(program, {key: value}).lists[List.TAKEN]
        assert (said.key, said.to) == (key, {"trainer.engine.dtype": "bfloat16"})
    with pytest.raises(ConfigurationError, match="line 1: bf16 = False: YATT computes in bfloat16 or float32"):
        of_keys(program, {"bf16": False})


def test_a_run_of_verl_that_only_validates_is_refused() -> None:
    only = "trainer.val_only"
    first = "trainer.val_before_train"
    with pytest.raises(
        ConfigurationError, match=r"line 1: trainer\.val_only = True: .*`yatt evaluate RUN --model FOLDER`"
    ):
        of_keys("verl-ppo", {only: True})
    assert only in keys_in(of_keys("verl-ppo", {only: False}), List.TAKEN)
    assert only in keys_in(of_keys("verl-ppo", {only: True, first: False}), List.TAKEN)  # verl trains then
