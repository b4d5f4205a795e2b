"""Losses, advantages, KL and corrections in YATT's conventions, where those of the peers differ from them."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.peers.entries import List
from tests.ops.starter.peers.reading import at, keys_in, of_keys
from yatt_core.errors import ConfigurationError

ACTOR = "actor_rollout_ref.actor"
GRPO = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}


@pytest.mark.parametrize(
    ("keys", "loss", "aggregation"),
    [
        ({}, {"kind": "dual_clip", "clip_low": 0.2, "clip_high": 0.2}, None),  # with a ratio_max of 3, as in verl
        (
            {f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.clip_ratio_c": 10.0},
            {"kind": "dual_clip", "clip_low": 0.2, "clip_high": 0.28, "ratio_max": 10.0},
            None,
        ),
        (
            {
                f"{ACTOR}.policy_loss.loss_mode": "gspo",
                f"{ACTOR}.clip_ratio_low": 3e-4,
                f"{ACTOR}.clip_ratio_high": 4e-4,
            },
            {"kind": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
            None,
        ),
        ({f"{ACTOR}.policy_loss.loss_mode": "cispo"}, {"kind": "cispo", "clip_low": 0.2, "clip_high": 0.2}, None),
        ({f"{ACTOR}.policy_loss.loss_mode": "sapo"}, {"kind": "sapo"}, "sequence_mean"),
        (
            {f"{ACTOR}.policy_loss.loss_mode": "geo_mean"},
            {"kind": "gmpo", "clip_low": 0.2, "clip_high": 0.2},
            "sequence_mean",
        ),
    ],
)
def test_the_losses_of_verl(keys: dict[str, Any], loss: dict[str, Any], aggregation: str | None) -> None:
    translation = of_keys("verl-ppo", {**GRPO, **keys})
    assert at(translation, "algorithm.loss") == loss
    assert at(translation, "algorithm.aggregation") == aggregation


def test_a_bound_that_verl_does_not_read_changes_nothing() -> None:
    translation = of_keys("verl-ppo", {**GRPO, f"{ACTOR}.clip_ratio": 0.5})
    assert at(translation, "algorithm.loss.clip_high") == 0.2
    open_bounds = {f"{ACTOR}.clip_ratio_low": None, f"{ACTOR}.clip_ratio_high": None}
    read = of_keys("verl-ppo", {**GRPO, f"{ACTOR}.clip_ratio": 0.5, **open_bounds})
    assert at(read, "algorithm.loss.clip_high") == at(read, "algorithm.loss.clip_low") == 0.5


@pytest.mark.parametrize(
    ("estimator", "advantage", "epsilon"),
    [
        ("grpo", {"kind": "group_std"}, 1e-6),
        ("rloo", {"kind": "leave_one_out"}, 1e-8),
        ("reinforce_plus_plus_baseline", {"kind": "reinforce_plus_plus", "baseline": True}, 1e-8),
    ],
)
def test_the_advantages_of_verl(estimator: str, advantage: dict[str, Any], epsilon: float) -> None:
    translation = of_keys("verl-ppo", {**GRPO, "algorithm.adv_estimator": estimator})
    assert (at(translation, "algorithm.advantage"), at(translation, "algorithm.epsilon")) == (advantage, epsilon)


def test_dr_grpo_of_verl() -> None:
    keys = {"algorithm.norm_adv_by_std_in_grpo": False, f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"}
    translation = of_keys("verl-ppo", {**GRPO, **keys})
    assert at(translation, "algorithm.advantage.kind") == "group_mean"
    assert at(translation, "algorithm.aggregation") == "fixed_length"


def test_gae_of_verl_has_verls_lambda_and_its_critics_bound() -> None:
    translation = of_keys("verl-ppo", {})
    assert at(translation, "algorithm.advantage") == {"kind": "gae", "gae_lambda": 1.0}
    assert at(translation, "algorithm.critic.clip") == 0.5


@pytest.mark.parametrize(("name", "estimator"), [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3"), ("k2", "k2")])
def test_the_kl_estimators_of_verl(name: str, estimator: str) -> None:
    translation = of_keys("verl-ppo", {**GRPO, f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": name})
    assert at(translation, "algorithm.kl") == {"where": "loss", "estimator": estimator, "coefficient": 0.001}


def test_an_adaptive_penalty_in_the_reward_of_verl() -> None:
    keys = {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.kl_ctrl.target_kl": 0.2,
    }
    kl = at(of_keys("verl-ppo", {**GRPO, **keys}), "algorithm.kl")
    assert kl == {"where": "reward", "estimator": "k1", "coefficient": 0.001, "adaptive": {"target": 0.2}}


@pytest.mark.parametrize(
    ("keys", "correction"),
    [
        ({"rollout_is": "token"}, {"by": "token", "kind": "truncate", "cap": 2.0}),
        ({"rollout_is": "sequence", "rollout_is_threshold": 5}, {"by": "sequence", "kind": "truncate", "cap": 5.0}),
        (
            {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"},
            {"by": "token", "kind": "mask", "low": 0.5, "high": 5.0},
        ),
    ],
)
def test_the_corrections_of_verl(keys: dict[str, Any], correction: dict[str, Any]) -> None:
    named = {f"algorithm.rollout_correction.{name}": value for name, value in keys.items()}
    written = at(of_keys("verl-ppo", {**GRPO, **named}), "algorithm.importance_correction")
    assert {"by": "token", **written} == correction


PENALTY = "reward_kwargs.overlong_buffer_cfg"


@pytest.mark.parametrize(
    "prefix",
    [
        "custom_reward_function.overlong_buffer",
        "reward_model.overlong_buffer",
        f"reward_model.{PENALTY}",
        f"reward.{PENALTY}",
    ],
)
def test_the_length_penalty_of_verl(prefix: str) -> None:
    keys: dict[str, Any] = {f"{prefix}.enable": True, f"{prefix}.len": 128, f"{prefix}.penalty_factor": 0.5}
    keys |= {
        f"{prefix}.log": False,
        "reward_model.reward_manager": "dapo",
        "reward_model.reward_kwargs.max_resp_len": 512,
    }
    translation = of_keys("verl-ppo", {**GRPO, **keys})
    assert at(translation, "algorithm.length_penalty") == {"kind": "overlong", "buffer": 128, "penalty": 0.5}
    assert keys_in(translation, List.TAKEN) == {*GRPO, *keys}
    off = of_keys("verl-ppo", {**GRPO, **keys, f"{prefix}.enable": False})
    unread = of_keys("verl-ppo", {**GRPO, **keys, "reward_model.reward_manager": "naive"})
    for other in (off, unread):
        assert at(other, "algorithm.length_penalty") is None
        assert keys_in(other, List.TAKEN) == {*GRPO, *keys}


def test_the_aggregation_of_gspo_is_the_one_that_verl_reads() -> None:
    keys = {f"{ACTOR}.policy_loss.loss_mode": "gspo"}
    unsaid = of_keys("verl-ppo", {**GRPO, **keys})
    assert "aggregation of gspo" in {verdict.key for verdict in unsaid.defaults}
    said = of_keys("verl-ppo", {**GRPO, **keys, f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"})
    assert at(said, "algorithm.aggregation") == "sequence_mean"
    assert "aggregation of gspo" not in {verdict.key for verdict in said.defaults}


@pytest.mark.parametrize(
    ("keys", "loss", "aggregation"),
    [
        ({}, {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2}, None),
        ({"loss_type": "grpo"}, {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2}, "sequence_mean"),
        ({"loss_type": "dr_grpo"}, {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2}, "fixed_length"),
        (
            {"epsilon_high": 0.28, "delta": 4.0},
            {"kind": "dual_clip", "clip_low": 0.2, "clip_high": 0.28, "ratio_max": 4.0},
            None,
        ),
        (
            {"loss_type": "cispo", "epsilon_high": 5.0},
            {"kind": "cispo", "clip_low": 1.0, "clip_high": 4.0},
            "token_mean",
        ),
        ({"loss_type": "sapo"}, {"kind": "sapo"}, "sequence_mean"),
    ],
)
def test_the_losses_of_trl(keys: dict[str, Any], loss: dict[str, Any], aggregation: str | None) -> None:
    translation = of_keys("trl-grpo", keys)
    assert at(translation, "algorithm.loss") == loss
    assert at(translation, "algorithm.aggregation") == aggregation


def test_the_default_bound_of_cispo_in_trl_cannot_be_written() -> None:
    with pytest.raises(ConfigurationError, match=r"epsilon_high .*bounded by 0\.2 itself in TRL.*such as 5\.0"):
        of_keys("trl-grpo", {"loss_type": "cispo"})


def test_dapo_in_mini_batches_is_divided_otherwise() -> None:
    divided = of_keys("trl-grpo", {"loss_type": "dapo", "steps_per_generation": 4})
    assert "loss_type" in keys_in(divided, List.DIFFERENT)
    assert "loss_type" in keys_in(of_keys("trl-grpo", {"loss_type": "dapo"}), List.TAKEN)


def test_the_kl_term_of_trl_is_unbiased_by_default() -> None:
    kl = at(of_keys("trl-grpo", {"beta": 0.04}), "algorithm.kl")
    assert kl == {"coefficient": 0.04, "where": "loss", "estimator": "k3", "unbiased": True}
    assert at(of_keys("trl-grpo", {"beta": 0.04, "use_bias_correction_kl": False}), "algorithm.kl.unbiased") is False


@pytest.mark.parametrize(
    ("mode", "correction"),
    [
        (None, {"kind": "mask", "by": "sequence", "low": 0.0, "high": 3.0}),
        ("token_truncate", {"kind": "truncate", "by": "token", "cap": 3.0}),
        ("sequence_truncate", {"kind": "truncate", "by": "sequence", "cap": 3.0}),
        ("token_mask", {"kind": "mask", "by": "token", "low": 0.0, "high": 3.0}),
    ],
)
def test_the_corrections_of_trl(mode: str | None, correction: dict[str, Any]) -> None:
    keys = {"use_vllm": True, **({} if mode is None else {"vllm_importance_sampling_mode": mode})}
    assert at(of_keys("trl-grpo", keys), "algorithm.importance_correction") == correction
    assert at(of_keys("trl-grpo", {}), "algorithm.importance_correction") is None


def test_scaled_rewards_of_trl() -> None:
    kinds = {"group": None, "batch": "batch_std", "none": "group_mean"}
    for scale, kind in kinds.items():
        written = at(of_keys("trl-grpo", {"scale_rewards": scale}), "algorithm.advantage.kind")
        assert written == kind or (kind is None and written == "group_std")
    keys = {"multi_objective_aggregation": "normalize_then_sum"}
    assert at(of_keys("trl-grpo", keys), "algorithm.advantage.kind") == "gdpo"


def test_label_smoothing_does_nothing_in_trl_and_is_said() -> None:
    translation = of_keys("trl-dpo", {"label_smoothing": 0.1})
    assert at(translation, "objective") == {"kind": "dpo"}
    assert "label_smoothing" in keys_in(translation, List.DIFFERENT)
    assert at(of_keys("openrlhf-dpo", {"model.label_smoothing": 0.1}), "objective.label_smoothing") == 0.1


def test_packing_and_learning_every_token_are_said() -> None:
    translation = of_keys("trl-sft", {"packing": True, "assistant_only_loss": False})
    assert keys_in(translation, List.DIFFERENT) == {"packing", "assistant_only_loss"}


@pytest.mark.parametrize(
    ("estimator", "advantage", "epsilon"),
    [
        ("group_norm", {"kind": "group_std"}, 1e-9),
        ("dr_grpo", {"kind": "group_mean"}, 1e-9),
        ("rloo", {"kind": "leave_one_out"}, 1e-9),
        ("reinforce", {"kind": "reinforce_plus_plus"}, 1e-8),
        ("reinforce_baseline", {"kind": "reinforce_plus_plus", "baseline": True}, 1e-8),
    ],
)
def test_the_advantages_of_openrlhf(estimator: str, advantage: dict[str, Any], epsilon: float) -> None:
    keys = {"algo.advantage.estimator": estimator, "rollout.n_samples_per_prompt": 8}
    translation = of_keys("openrlhf-ppo", keys)
    assert {"baseline": False, **at(translation, "algorithm.advantage")} == {"baseline": False, **advantage}
    assert at(translation, "algorithm.epsilon") == epsilon


def test_a_penalty_that_openrlhf_subtracts_after_normalising_is_said() -> None:
    keys = {"algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 8, "algo.kl.use_loss": False}
    assert "algo.kl.use_loss" in keys_in(of_keys("openrlhf-ppo", keys), List.DIFFERENT)
    assert "algo.kl.use_loss" in keys_in(of_keys("openrlhf-ppo", {**keys, "algo.kl.use_loss": True}), List.TAKEN)


@pytest.mark.parametrize(
    ("keys", "correction"),
    [
        ({"level": "token"}, {"by": "token", "kind": "mask", "low": 0.5, "high": 5.0}),
        ({"level": "token", "mode": "clip", "threshold": 2.0}, {"by": "token", "kind": "truncate", "cap": 2.0}),
        ({"level": "seq", "threshold": [0.9, 1.1]}, {"by": "sequence_mean", "kind": "mask", "low": 0.9, "high": 1.1}),
    ],
)
def test_the_corrections_of_openrlhf(keys: dict[str, Any], correction: dict[str, Any]) -> None:
    named = {f"algo.advantage.is_correction_{name}": value for name, value in keys.items()}
    written = at(of_keys("openrlhf-ppo", named), "algorithm.importance_correction")
    assert {"low": 0.5, "high": 5.0, **written} == {"low": 0.5, "high": 5.0, **correction}


@pytest.mark.parametrize(
    ("program", "keys", "message"),
    [
        ("verl-ppo", {"algorithm.adv_estimator": "remax"}, "no such advantage; expected one of"),
        ("verl-ppo", {**GRPO, f"{ACTOR}.policy_loss.loss_mode": "kl_cov"}, "no such loss"),
        ("verl-ppo", {**GRPO, f"{ACTOR}.use_kl_loss": True, "algorithm.use_kl_in_reward": True}, "keep one"),
        (
            "verl-ppo",
            {**GRPO, f"{ACTOR}.policy_loss.loss_mode": "clip_cov", f"{ACTOR}.entropy_coeff": 0.01},
            "beside loss_mode clip_cov",
        ),
        (
            "verl-ppo",
            {
                **GRPO,
                "reward_model.reward_manager": "dapo",
                f"reward_model.{PENALTY}.enable": True,
                f"reward_model.{PENALTY}.len": 64,
                "reward_model.reward_kwargs.max_resp_len": 256,
            },
            "data.max_response_length here, 512; expected the same",
        ),
        ("verl-ppo", {**GRPO, "algorithm.overlong_buffer.enable": True}, "verl reads a length penalty under one of"),
        ("trl-sft", {"chat_template_path": "other"}, "would learn something else"),
        ("trl-reward", {"chat_template_path": "other"}, "would learn something else"),
        ("trl-dpo", {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2}}, "has no options here"),
        ("trl-dpo", {"loss_weights": [0.5]}, "a weight of 1"),
        ("verl-sft", {"model.custom_chat_template": "{{ x }}"}, "would learn something else"),
        ("verl-sft", {"model.lora_adapter_path": "adapter"}, "would learn something else"),
        ("verl-ppo", {**GRPO, "actor_rollout_ref.model.tokenizer_path": "other"}, "would learn something else"),
        (
            "verl-ppo",
            {**GRPO, f"{ACTOR}.optim.lr_scheduler_type": "cosine", f"{ACTOR}.optim.num_cycles": 2.5},
            "one descent",
        ),
        ("verl-ppo", {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.optim.lr_decay_style": "WSD"}, "expected constant"),
        ("verl-ppo", {"critic.optim.optimizer": "Muon"}, "AdamW alone"),
        ("openrlhf-sft", {"data.tokenizer_chat_template": "{{ x }}"}, "would learn something else"),
        ("openrlhf-rm", {"model.margin_loss_enable": True}, "would learn something else"),
        ("openrlhf-ppo", {"critic.optim": "muon"}, "AdamW alone"),
        ("trl-grpo", {"loss_type": "vespo"}, "no such loss"),
        ("trl-grpo", {"top_entropy_quantile": 0.2}, "learns from all tokens"),
        ("trl-dpo", {"loss_type": "ipo"}, "expected sigmoid"),
        ("trl-sft", {"loss_type": "dft"}, "expected nll"),
        ("openrlhf-ppo", {"algo.advantage.estimator": "flash_reinforce"}, "no such advantage"),
        ("openrlhf-dpo", {"model.ipo_enable": True}, "DPO's own loss"),
        ("verl-ppo", {"distillation.enabled": True}, "would learn something else; False in a copy"),
        ("trl-sft", {"neftune_noise_alpha": 5.0}, "would learn something else; None in a copy"),
        ("openrlhf-ppo", {"reward.stop_properly_penalty_coef": 0.5}, "would learn something else"),
    ],
)
def test_what_would_be_another_algorithm_is_refused_with_its_line(
    program: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"file, line {len(keys)}.*{message}"):
        of_keys(program, keys)


@pytest.mark.parametrize(("program", "keys"), [("trl-grpo", {}), ("trl-grpo", {"use_vllm": True}), ("verl-ppo", GRPO)])
def test_a_run_is_exact_where_its_engines_can_be(program: str, keys: dict[str, Any]) -> None:
    assert at(of_keys(program, keys), "exact") is None


def test_a_weight_decay_that_exempts_norms_is_said() -> None:
    assert "weight_decay" in keys_in(of_keys("trl-sft", {"weight_decay": 0.1}), List.DIFFERENT)
    assert "weight_decay" in keys_in(of_keys("trl-sft", {"weight_decay": 0.0}), List.TAKEN)
    assert at(of_keys("verl-ppo", {**GRPO}), "trainer.optimizer.weight_decay") == 0.01


def test_asynchronous_training_is_said() -> None:
    assert "train.async_enable" in keys_in(of_keys("openrlhf-ppo", {"train.async_enable": True}), List.DIFFERENT)
    keys = {**GRPO, "trainer.v1.trainer_mode": "separate_async"}
    assert "trainer.v1.trainer_mode" in keys_in(of_keys("verl-ppo", keys), List.DIFFERENT)
