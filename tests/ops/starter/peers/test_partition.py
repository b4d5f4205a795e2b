"""Property: whatever keys a file has, each is in exactly one list, and a key that no version has is named as unknown."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.starter.peers.entries import List
from ops.starter.peers.programs import PROGRAMS
from ops.starter.peers.translating import Translation
from tests.matrix import examples
from tests.ops.starter.peers.reading import at, keys_in, of_keys
from yatt_core.errors import ConfigurationError

ACTOR = "actor_rollout_ref.actor"
MADE_UP = st.from_regex(r"made_up_[a-z]{1,8}", fullmatch=True)


@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=examples(25), deadline=None)
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
    assert_written(translation)


def assert_written(translation: Translation) -> None:
    """Asserts that the spec has what the lists say was written, so that nothing has replaced it."""
    said = [*translation.defaults, *(verdict for verdicts in translation.lists.values() for verdict in verdicts)]
    for verdict in said:
        for path, value in verdict.to.items():
            assert at(translation, path) == value, (verdict.key, path)


SWITCHES: dict[str, dict[str, list[Any]]] = {
    "verl-ppo": {
        "algorithm.adv_estimator": ["grpo", "rloo", "reinforce_plus_plus_baseline", "gae"],
        f"{ACTOR}.policy_loss.loss_mode": ["vanilla", "gspo", "geo_mean", "cispo", "clip_cov", "sapo"],
        f"{ACTOR}.policy_loss.clip_cov_ratio": [0.001],
        f"{ACTOR}.loss_agg_mode": ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
        f"{ACTOR}.entropy_coeff": [0, 0.01],
        f"{ACTOR}.use_kl_loss": [False, True],
        "algorithm.use_kl_in_reward": [False, True],
        "algorithm.kl_ctrl.type": ["fixed", "adaptive"],
        "algorithm.rollout_correction.rollout_is": [None, "token", "sequence"],
        "algorithm.filter_groups.enable": [False, True],
        "reward_model.reward_manager": ["naive", "dapo"],
        "reward_model.overlong_buffer.enable": [False, True],
        "reward_model.overlong_buffer.len": [64],
        f"{ACTOR}.tis_imp_ratio_cap": [-1, 2.0],
        "algorithm.rollout_is": [False, True],
        "algorithm.rollout_is_threshold": [None, 4.0],
        "algorithm.rollout_is_mode": ["truncate", "mask"],
        "data.truncation": ["error", "left", "right"],
        "data.filter_overlong_prompts": [False, True],
        "actor_rollout_ref.rollout.name": ["hf", "vllm", "sglang"],
        "actor_rollout_ref.actor.strategy": ["fsdp", "fsdp2", "megatron"],
        f"{ACTOR}.use_dynamic_bsz": [False, True],
        "actor_rollout_ref.rollout.val_kwargs.do_sample": [False, True],
        "actor_rollout_ref.model.lora_rank": [0, 8],
        "trainer.total_training_steps": [None, 20],
    },
    "trl-grpo": {
        "loss_type": ["grpo", "bnpo", "dapo", "dr_grpo", "sapo"],
        "importance_sampling_level": ["token", "sequence"],
        "delta": [None, 4.0],
        "steps_per_generation": [None, 4],
        "beta": [0.0, 0.04],
        "sync_ref_model": [False, True],
        "ref_model_mixup_alpha": [0.6, 1.0],
        "use_adaptive_entropy": [False, True],
        "entropy_coef": [0.0, 0.01],
        "use_vllm": [False, True],
        "vllm_importance_sampling_mode": ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
        "scale_rewards": ["group", "batch", "none"],
        "multi_objective_aggregation": ["sum_then_normalize", "normalize_then_sum"],
        "max_prompt_length": [None, 64],
        "use_peft": [False, True],
        "bf16": [None, True, False],
        "lr_scheduler_type": ["linear", "cosine", "constant"],
        "warmup_steps": [0, 0.1, 8],
        "save_strategy": ["no", "steps"],
        "eval_strategy": ["no", "steps", "epoch"],
    },
    "openrlhf-ppo": {
        "algo.advantage.estimator": ["group_norm", "dr_grpo", "rloo", "reinforce", "reinforce_baseline", "gae"],
        "rollout.n_samples_per_prompt": [8],
        "actor.policy_loss_type": ["ppo", "gspo"],
        "actor.dual_clip": [None, 3.0],
        "actor.eps_clip_low_high": [None, [0.2, 0.28]],
        "actor.loss_agg_mode": ["token-mean", "seq-mean-token-mean"],
        "actor.entropy_coef": [None, 0.01],
        "algo.kl.init_coef": [0, 0.01],
        "algo.kl.use_loss": [False, True],
        "algo.kl.target": [None, 6.0],
        "algo.advantage.is_correction_level": ["off", "token", "seq"],
        "enable_vllm_is_correction": [None, True],
        "vllm_is_correction_type": ["tis", "icepop"],
        "vllm_is_truncated_threshold": [[0.0, 4.0]],
        "algo.dynamic_filtering_enable": [False, True],
        "reward.overlong_buffer_len": [None, 64],
        "rollout.max_new_tokens": [None, 512],
        "prompt_max_len": [None, 128],
        "train.dynamic_batch_enable": [False, True],
        "ds.lora.rank": [0, 8],
        "ds.zero_stage": [2, 3],
        "critic.freezing_steps": [-1, 10],
    },
}
"""Keys that choose among rules, with values that are possible by themselves."""


@pytest.mark.parametrize("program", SWITCHES)
def test_what_a_key_has_written_is_in_the_spec_whatever_the_others_say(program: str) -> None:
    draw = random.Random(0)
    read = 0
    for _ in range(200):
        chosen = {key: draw.choice(values) for key, values in SWITCHES[program].items() if draw.random() < 0.5}
        try:
            translation = of_keys(program, chosen)
        except ConfigurationError as error:
            assert "would be both" not in str(error), chosen
            continue  # refused together, by a sentence that says which key
        read += 1
        listed = [verdict.key for name in List for verdict in translation.lists[name]]
        assert sorted(listed) == sorted(chosen)
        assert_written(translation)
    assert read > 20


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
