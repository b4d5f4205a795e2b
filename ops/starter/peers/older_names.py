"""Keys of earlier versions of the peers that their examples still have, with their present names: data."""

from __future__ import annotations

from collections.abc import Mapping

_PENALTY = ("enable", "len", "penalty_factor", "log")
_KWARGS = ("max_resp_len", *(f"overlong_buffer_cfg.{name}" for name in _PENALTY))
VERL_OLDER: Mapping[str, str] = {
    **{
        f"{place}.reward_kwargs.{key}": f"reward.reward_kwargs.{key}"
        for place in ("reward_model", "reward")
        for key in _KWARGS
    },
    **{
        f"{place}.overlong_buffer.{key}": f"{place}.overlong_buffer.{key}"
        for place in ("reward_model", "custom_reward_function")
        for key in _PENALTY
    },
    **{
        key: key
        for key in (
            "actor_rollout_ref.actor.fsdp_config.grad_offload",
            "reward_model.input_tokenizer",
            "reward_model.micro_batch_size_per_gpu",
            "actor_rollout_ref.actor.tis_imp_ratio_cap",
            "algorithm.rollout_is",
            "algorithm.rollout_is_threshold",
            "algorithm.rollout_is_threshold_lower",
            "algorithm.rollout_is_level",
            "algorithm.rollout_is_mode",
            "algorithm.rollout_is_veto_threshold",
        )
    },
}

VERL_SFT_OLDER: Mapping[str, str] = {
    "model.partial_pretrain": "model.path",
    "model.strategy": "engine.strategy",
    "optim.warmup_steps_ratio": "optim.lr_warmup_steps_ratio",
    "optim.lr_scheduler": "optim.lr_scheduler_type",
    "data.multiturn.messages_key": "data.messages_key",
    "data.multiturn.tools_key": "data.tools_key",
    "data.multiturn.enable_thinking_key": "data.enable_thinking_key",
    "ulysses_sequence_parallel_size": "engine.ulysses_sequence_parallel_size",
    "use_remove_padding": "model.use_remove_padding",
    **{
        key: key
        for key in (
            "data.multiturn.enable",
            "data.prompt_key",
            "data.prompt_dict_keys",
            "data.response_key",
            "data.response_dict_keys",
            "data.micro_batch_size",
            "data.chat_template",
            "model.fsdp_config.model_dtype",
            "model.fsdp_config.cpu_offload",
            "model.fsdp_config.offload_params",
            "model.fsdp_config.wrap_policy.min_num_params",
        )
    },
}

_TRL = {
    key: key
    for key in (
        "warmup_ratio",
        "torch_dtype",
        "num_processes",
        "accelerate_config",
        "config",
        "env",
        "overwrite_output_dir",
        "logging_dir",
        "group_by_length",
    )
}
_TRL |= {"evaluation_strategy": "eval_strategy"}
_CUT = {"max_prompt_length": "max_prompt_length"}
TRL_OLDER: Mapping[str, Mapping[str, str]] = {
    "grpo": {**_TRL, **_CUT},
    "dpo": {**_TRL, **_CUT},
    "sft": {**_TRL, "max_seq_length": "max_length"},
    "reward": _TRL,
}
"""By program. Keys without a present name stand for themselves."""

_SHARED = {
    "save_path": "ckpt.output_dir",
    "save_steps": "ckpt.save_steps",
    "logging_steps": "logger.logging_steps",
    "eval_steps": "eval.steps",
    "eval_dataset": "eval.dataset",
    "ckpt_path": "ckpt.path",
    "max_ckpt_num": "ckpt.max_num",
    "max_ckpt_mem": "ckpt.max_mem",
    "load_checkpoint": "ckpt.load_enable",
    "save_hf_ckpt": "ckpt.save_hf",
    "disable_ds_ckpt": "ckpt.disable_ds",
    "train_batch_size": "train.batch_size",
    "micro_train_batch_size": "train.micro_batch_size",
    "max_epochs": "train.max_epochs",
    "seed": "train.seed",
    "max_samples": "data.max_samples",
    "max_len": "data.max_len",
    "input_key": "data.input_key",
    "input_template": "data.input_template",
    "apply_chat_template": "data.apply_chat_template",
    "zero_stage": "ds.zero_stage",
    "param_dtype": "ds.param_dtype",
    "adam_offload": "ds.adam_offload",
    "zpg": "ds.zpg",
    "overlap_comm": "ds.overlap_comm",
    "grad_accum_dtype": "ds.grad_accum_dtype",
    "attn_implementation": "ds.attn_implementation",
    "use_liger_kernel": "ds.use_liger_kernel",
    "packing_samples": "ds.packing_samples",
    "load_in_4bit": "ds.load_in_4bit",
    "lora_rank": "ds.lora.rank",
    "lora_alpha": "ds.lora.alpha",
    "lora_dropout": "ds.lora.dropout",
    "target_modules": "ds.lora.target_modules",
    "ring_attn_size": "ds.ring_attn_size",
    "ring_head_stride": "ds.ring_attn_head_stride",
    "use_wandb": "logger.wandb.key",
    "wandb_project": "logger.wandb.project",
    "wandb_run_name": "logger.wandb.run_name",
    "use_tensorboard": "logger.tensorboard_dir",
    "bf16": "bf16",
    "flash_attn": "flash_attn",
    "eval_split": "eval.split",
    "disable_fast_tokenizer": "data.disable_fast_tokenizer",
    "full_determinism": "train.full_determinism_enable",
    "deepcompile": "ds.deepcompile",
    "ds_tensor_parallel_size": "ds.tensor_parallel_size",
    "use_ds_universal_ckpt": "ds.use_universal_ckpt",
    "wandb_group": "logger.wandb.group",
    "wandb_org": "logger.wandb.org",
}
_ROWS = {
    **_SHARED,
    "pretrain": "model.model_name_or_path",
    "actor.model_name_or_path": "model.model_name_or_path",
    "actor.gradient_checkpointing_enable": "model.gradient_checkpointing_enable",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "learning_rate": "adam.lr",
    "l2": "adam.weight_decay",
    "dataset": "data.dataset",
    "dataset_probs": "data.dataset_probs",
    "dataset_split": "data.dataset_split",
    "adam_betas": "adam.betas",
    "tokenizer_chat_template": "data.tokenizer_chat_template",
    "gradient_checkpointing_use_reentrant": "model.gradient_checkpointing_reentrant",
    "output_key": "data.output_key",
    "multiturn": "data.multiturn",
    "aux_loss_coef": "model.aux_loss_coef",
}
_PAIRS = {
    **{
        older: key for older, key in _ROWS.items() if key not in ("data.input_key", "data.output_key", "data.multiturn")
    },
    "prompt_key": "data.prompt_key",
    "chosen_key": "data.chosen_key",
    "rejected_key": "data.rejected_key",
}
OPENRLHF_OLDER: Mapping[str, Mapping[str, str]] = {
    "ppo": {
        **_SHARED,
        "pretrain": "actor.model_name_or_path",
        "reward_pretrain": "reward.model_name_or_path",
        "critic_pretrain": "critic.model_name_or_path",
        "remote_rm_url": "reward.remote_url",
        "agent_func_path": "train.agent_func_path",
        "prompt_data": "data.prompt_dataset",
        "prompt_data_probs": "data.prompt_probs",
        "prompt_split": "data.prompt_split",
        "label_key": "data.label_key",
        "prompt_max_len": "prompt_max_len",
        "generate_max_len": "rollout.max_new_tokens",
        "rollout_batch_size": "rollout.batch_size",
        "micro_rollout_batch_size": "rollout.micro_batch_size",
        "n_samples_per_prompt": "rollout.n_samples_per_prompt",
        "temperature": "rollout.temperature",
        "top_p": "rollout.top_p",
        "num_episodes": "train.num_episodes",
        "actor_learning_rate": "actor.adam.lr",
        "adam_betas": "actor.adam.betas",
        "l2": "actor.adam.weight_decay",
        "max_norm": "actor.max_norm",
        "lr_scheduler": "actor.lr_scheduler",
        "lr_warmup_ratio": "actor.lr_warmup_ratio",
        "aux_loss_coef": "actor.aux_loss_coef",
        "freeze_visual_encoder": "actor.freeze_visual_encoder",
        "gradient_checkpointing_use_reentrant": "actor.gradient_checkpointing_reentrant",
        "save_value_network": "critic.save_value_network",
        "stop_properly_penalty_coef": "reward.stop_properly_penalty_coef",
        "eval_temperature": "eval.temperature",
        "eval_n_samples_per_prompt": "eval.n_samples_per_prompt",
        "enable_ema": "train.enable_ema",
        "ema_beta": "train.ema_beta",
        "partial_rollout": "train.partial_rollout_enable",
        "critic_learning_rate": "critic.adam.lr",
        "eps_clip": "actor.eps_clip",
        "eps_clip_low_high": "actor.eps_clip_low_high",
        "dual_clip": "actor.dual_clip",
        "value_clip": "critic.value_clip",
        "lambd": "algo.advantage.lambd",
        "gamma": "algo.advantage.gamma",
        "init_kl_coef": "algo.kl.init_coef",
        "kl_target": "algo.kl.target",
        "kl_horizon": "algo.kl.horizon",
        "kl_estimator": "algo.kl.estimator",
        "use_kl_loss": "algo.kl.use_loss",
        "advantage_estimator": "algo.advantage.estimator",
        "no_advantage_std_norm": "algo.advantage.no_std_norm",
        "entropy_loss_coef": "actor.entropy_coef",
        "policy_loss_type": "actor.policy_loss_type",
        "freezing_actor_steps": "critic.freezing_steps",
        "normalize_reward": "reward.normalize_enable",
        "reward_clip_range": "reward.clip_range",
        "enable_vllm_is_correction": "enable_vllm_is_correction",
        "vllm_is_correction_type": "vllm_is_correction_type",
        "vllm_is_truncated_threshold": "vllm_is_truncated_threshold",
        "dynamic_filtering": "algo.dynamic_filtering_enable",
        "dynamic_filtering_reward_range": "algo.dynamic_filtering_range",
        "overlong_buffer_len": "reward.overlong_buffer_len",
        "overlong_penalty_factor": "reward.overlong_penalty_factor",
        "gradient_checkpointing": "actor.gradient_checkpointing_enable",
        "actor_num_nodes": "actor.num_nodes",
        "actor_num_gpus_per_node": "actor.num_gpus_per_node",
        "critic_num_nodes": "critic.num_nodes",
        "critic_num_gpus_per_node": "critic.num_gpus_per_node",
        "ref_num_nodes": "ref.num_nodes",
        "ref_num_gpus_per_node": "ref.num_gpus_per_node",
        "reward_num_nodes": "reward.num_nodes",
        "reward_num_gpus_per_node": "reward.num_gpus_per_node",
        "colocate_all_models": "train.colocate_all",
        "colocate_actor_ref": "train.colocate_actor_ref",
        "colocate_critic_reward": "train.colocate_critic_reward",
        "ref_reward_offload": "ref.offload",
        "vllm_num_engines": "vllm.num_engines",
        "vllm_tensor_parallel_size": "vllm.tensor_parallel_size",
        "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
        "vllm_sync_backend": "vllm.sync_backend",
        "vllm_sync_with_ray": "vllm.sync_with_ray",
        "vllm_enable_sleep": "vllm.enable_sleep",
        "deepspeed_enable_sleep": "ds.enable_sleep",
        "enforce_eager": "vllm.enforce_eager",
        "enable_prefix_caching": "vllm.enable_prefix_caching",
        "use_dynamic_batch": "train.dynamic_batch_enable",
        "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
        "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu",
        "async_train": "train.async_enable",
        "async_queue_size": "train.async_queue_size",
    },
    "sft": {**_ROWS, "pretrain_mode": "model.pretrain_mode_enable"},
    "dpo": {
        **_PAIRS,
        "beta": "model.beta",
        "ipo": "model.ipo_enable",
        "label_smoothing": "model.label_smoothing",
        "nll_loss_coef": "model.nll_loss_coef",
        "ref_pretrain": "ref.model_name_or_path",
        "ref_offload": "ref.offload",
    },
    "rm": {
        **{older: key for older, key in _PAIRS.items() if key != "ds.use_liger_kernel"},
        "loss": "model.loss_type",
        "margin_loss": "model.margin_loss_enable",
        "compute_fp32_loss": "model.compute_fp32_loss_enable",
        "value_head_prefix": "ds.value_head_prefix",
    },
}
"""By program. Keys without a present name stand for themselves."""
