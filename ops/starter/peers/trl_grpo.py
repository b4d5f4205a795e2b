"""TRL's GRPO: what its keys mean in a spec, in YATT's conventions.

Consumes a draft with TRL's keys, and options. Writes into the draft. Raises `ConfigurationError`.

Conventions of TRL 1.16.0 beside YATT's: a generation has `generation_batch_size` completions, by default
`per_device_train_batch_size` x processes x `steps_per_generation`; `steps_per_generation` counts micro-batches, and is
`gradient_accumulation_steps` by default. CISPO's `epsilon_high` is the bound of the weight itself, here its distance from 1.
Group deviations are over n - 1, plus 1e-4, as here. The KL term is k3, by default multiplied by the ratio. Values and
gradients of the losses named here agree with TRL's to 1e-6.
"""

from __future__ import annotations

from typing import Any

from ops.starter.peers import common, trl
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions, model_of
from ops.starter.peers.reasons import OFF, TRL_REASONS

AGGREGATIONS = {
    "grpo": "sequence_mean",
    "sapo": "sequence_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "dr_grpo": "fixed_length",
}
SCALES = {"group": "group_std", "batch": "batch_std", "none": "group_mean", True: "group_std", False: "group_mean"}
CORRECTIONS = {
    "token_truncate": ("truncate", "token"),
    "token_mask": ("mask", "token"),
    "sequence_truncate": ("truncate", "sequence"),
    "sequence_mask": ("mask", "sequence"),
}
REWARDS: dict[str, dict[str, Any]] = {
    "accuracy_reward": {"name": "accuracy", "function": "math_equal"},
    "think_format_reward": {
        "name": "think_format",
        "function": "format",
        "options": {"pattern": r"(?s)<think>.*</think>.*"},
        "reads": "response",
    },
}
"""Rewards that TRL brings, and what YATT has for them."""


def translate(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a GRPO run."""
    trl.beginning(draft)
    trl.model(draft, options)
    names = _reward_names(draft)
    fields = {"prompt_field": "prompt", **({"answer_field": "solution"} if "accuracy_reward" in names else {})}
    trl.sources(draft, options, fields, "prompts under `prompt`, as TRL reads them")
    per_iteration = _batches(draft, options)
    _rewards(draft, options, names)
    _sampling(draft, options)
    _loss(draft)
    _advantage(draft)
    _kl(draft, per_iteration)
    _entropy(draft)
    _masks(draft)
    trl.optimizer(draft)
    prompts = draft.tree["data"]["prompts_per_iteration"]
    steps = trl.length(draft, options, prompts, per_iteration, whole_only=True)
    trl.schedule(draft, steps, per_iteration)
    trl.engine(draft, options)
    trl.surveys(draft, steps, per_iteration)
    common.off(draft, OFF["trl"])
    draft.finish(TRL_REASONS)


def _batches(draft: Draft, options: TranslationOptions) -> int:
    """Writes the sizes of an iteration; returns its number of optimizer steps."""
    group = draft.number("num_generations", 2)
    of_step = trl.batch(draft, options)
    micro = draft.number("per_device_train_batch_size", 1) * trl.processes(draft, options)
    gathered = draft.number("gradient_accumulation_steps", 1)
    if draft["generation_batch_size"] is not None:
        key = "generation_batch_size"
        whole = draft.number("generation_batch_size", 1)
        draft.takes("steps_per_generation", {}, "generation_batch_size decides")
    else:
        key = "steps_per_generation"
        whole = micro * (gathered if draft[key] is None else draft.number(key, 1))
    if whole < of_step and draft.number("num_iterations", 1) > 1:
        draft.refuse(
            key,
            f"a step of {of_step} completions has several generations of {whole}, which num_iterations cannot repeat here",
        )
    whole = max(whole, of_step)
    key = key if draft[key] is not None else "per_device_train_batch_size"
    steps = draft.quotient(whole, of_step, "completions of a generation by those of an optimizer step", key)
    prompts = draft.quotient(whole, group, "completions of a generation by num_generations", key)
    written = {"data.prompts_per_iteration": prompts, "algorithm.mini_batches": steps}
    what = f"{of_step} completions in an optimizer step, {whole} in a generation: {prompts} prompts with {group} each"
    for path, value in written.items():
        draft.write(path, value)
    trl.batch_keys(draft, options, written, what)
    draft.takes(key, written, what) if key != "per_device_train_batch_size" else None
    draft.takes("num_generations", {"rollout.samples_per_prompt": group})
    passes = draft.number("num_iterations", 1)
    draft.takes("num_iterations", {"algorithm.epochs": passes}, "passes over a generation")
    return steps * passes


def _reward_names(draft: Draft) -> list[str]:
    names = draft["reward_funcs"]
    return [names] if isinstance(names, str) else list(names or [])


def _rewards(draft: Draft, options: TranslationOptions, names: list[str]) -> None:
    weights = draft["reward_weights"]
    judge = draft["reward_model_name_or_path"]
    if options.rewarded:
        for key in ("reward_funcs", "reward_model_name_or_path", "reward_weights"):
            if draft.given(key):
                draft.differs(key, "--reward takes its place")
        return
    parts = [_part(draft, name) for name in names if name != "get_soft_overlong_punishment"]
    if judge is not None:
        common.no_variable(draft, "reward_model_name_or_path")
        parts.append({"name": "reward_model", "kind": "reward_model", "model": model_of(judge, options.folder)})
    if "get_soft_overlong_punishment" in names:
        options_of_it = {"maximum": 1280, "buffer": 256}
        parts.append({"name": "overlong", "function": "overlong_penalty", "options": options_of_it})
    if not parts:
        return
    if weights is not None:
        if len(weights) != len(parts):
            draft.refuse("reward_weights", f"expected {len(parts)} weights, one for each reward")
        for part, weight in zip(parts, weights, strict=True):
            part["weight"] = float(weight)
        draft.takes("reward_weights", {}, "the weights of rewards.parts")
    if names:
        why = "math-verify decides in both; an answer that cannot be read is an error here, and left out in TRL"
        draft.differs("reward_funcs", why, {"rewards.parts": parts})
    if judge is not None:
        draft.takes("reward_model_name_or_path", {"rewards.parts": parts})


def _part(draft: Draft, name: str) -> dict[str, Any]:
    if name not in REWARDS:
        draft.refuse(
            "reward_funcs",
            f"{name} is called with other arguments than a reward of YATT (docs/configuration.md); name its "
            "counterpart with --reward",
        )
    return dict(REWARDS[name])


def _sampling(draft: Draft, options: TranslationOptions) -> None:
    draft.takes("temperature", {"rollout.temperature": draft.real("temperature")})
    draft.takes("top_p", {"rollout.top_p": draft.real("top_p")})
    top_k = draft.number("top_k", -1)
    draft.takes("top_k", {"rollout.top_k": top_k if top_k > 0 else None})
    if draft["min_p"] is not None:
        draft.takes("min_p", {"rollout.min_p": draft.real("min_p")})
    draft.takes("repetition_penalty", {"rollout.repetition_penalty": draft.real("repetition_penalty")})
    draft.takes("max_completion_length", {"rollout.max_new_tokens": draft.number("max_completion_length", 1)})
    if draft["max_prompt_length"] is None:
        why = "prompts have a limit here, data.max_prompt_tokens, and longer ones are refused; data.over_long says otherwise"
        draft.notes("length of prompts", "no limit", why)
    else:
        limit = draft.number("max_prompt_length", 1)
        why = "TRL cuts the beginning of the rendered prompt, YATT that of the text in it"
        draft.differs("max_prompt_length", why, {"data.max_prompt_tokens": limit, "data.over_long": "cut_start"})
    if not draft.truth("shuffle_dataset"):
        draft.differs("shuffle_dataset", "prompts come in a seeded order, epoch by epoch, never in that of the file")
    else:
        draft.takes("shuffle_dataset", {}, "prompts come in a seeded order")
    _templates(draft)
    _generating(draft, options)


def _templates(draft: Draft) -> None:
    given = draft["chat_template_kwargs"]
    if isinstance(given, dict):
        draft.takes("chat_template_kwargs", {"data.chat_template_kwargs": given})


def _generating(draft: Draft, options: TranslationOptions) -> None:
    """Writes the engine that generates, and the correction of its probabilities."""
    shared = draft.number("vllm_tensor_parallel_size", 1)
    devices = options.processes or 1
    if not draft.truth("use_vllm"):
        half = draft["bf16"] is None or draft.truth("bf16")
        engine = {"kind": "torch", "instances": devices, "dtype": "bfloat16" if half else "float32"}
        draft.takes("use_vllm", {"rollout.engine": engine}, "YATT's own decoding in place of transformers' generate")
        draft.write("rollout.engine", engine)
        for key in ("vllm_tensor_parallel_size", "vllm_gpu_memory_utilization"):
            draft.takes(key, {}, "without effect: use_vllm is false")
        for key in ("correction", "mode", "clip_max", "clip_min", "cap"):
            draft.takes(f"vllm_importance_sampling_{key}", {}, "without effect: use_vllm is false")
        return
    draft.takes("use_vllm", {"rollout.engine.kind": "vllm"})
    instances = draft.quotient(devices, shared, "processes by vllm_tensor_parallel_size", "vllm_tensor_parallel_size")
    draft.write("rollout.engine.instances", instances)
    draft.takes("vllm_tensor_parallel_size", {"rollout.engine.tensor_parallel_size": shared})
    memory = "vllm_gpu_memory_utilization"
    draft.takes(memory, {"rollout.engine.gpu_memory_utilization": draft.real(memory)})
    _correction(draft)


def _correction(draft: Draft) -> None:
    prefix = "vllm_importance_sampling"
    keys = {name: f"{prefix}_{name}" for name in ("correction", "mode", "clip_max", "clip_min", "cap")}
    if not draft.truth(keys["correction"]):
        for key in keys.values():
            draft.takes(key, {}, "no correction")
        return
    mode = draft[keys["mode"]]
    if mode not in CORRECTIONS:
        draft.refuse(keys["mode"], f"expected one of {', '.join(CORRECTIONS)}")
    kind, level = CORRECTIONS[mode]
    high = draft[keys["clip_max"]]
    low = draft[keys["clip_min"]]
    if draft[keys["cap"]] is not None:
        if draft.given(keys["clip_max"]):
            draft.refuse(keys["cap"], f"the older name of {keys['clip_max']}; keep one of them")
        high = draft[keys["cap"]]
    draft.takes(keys["correction"], {}, "algorithm.importance_correction")
    draft.takes(
        keys["mode"], {"algorithm.importance_correction.kind": kind, "algorithm.importance_correction.by": level}
    )
    if high is None:
        draft.refuse(keys["clip_max"], "a correction has an upper bound here; expected a number")
    to = {f"algorithm.importance_correction.{'cap' if kind == 'truncate' else 'high'}": float(high)}
    draft.takes(keys["cap"], to) if draft[keys["cap"]] is not None else draft.takes(keys["clip_max"], to)
    draft.takes(keys["cap"], {}, "clip_max decides") if draft[keys["cap"]] is None else None
    if kind == "mask":
        draft.write("algorithm.importance_correction.low", float(low or 0.0))
        draft.takes(keys["clip_min"], {"algorithm.importance_correction.low": float(low or 0.0)})
    elif low is not None:
        draft.lacks(keys["clip_min"], "a truncated weight has no lower bound here")


def _loss(draft: Draft) -> None:
    kind = draft["loss_type"]
    level = draft["importance_sampling_level"]
    if kind not in AGGREGATIONS:
        draft.refuse("loss_type", f"YATT has no such loss; expected one of {', '.join(AGGREGATIONS)}")
    low = draft.real("epsilon")
    high = low if draft["epsilon_high"] is None else draft.real("epsilon_high")
    aggregation = {"algorithm.aggregation": AGGREGATIONS[kind]}
    if kind == "cispo":
        _cispo(draft, high, aggregation)
    elif kind == "sapo":
        rates = {"tau_positive": "sapo_temperature_pos", "tau_negative": "sapo_temperature_neg"}
        draft.takes("loss_type", {"algorithm.loss.kind": "sapo", **aggregation})
        for own, key in rates.items():
            draft.takes(key, {f"algorithm.loss.{own}": draft.real(key)})
        for key in ("epsilon", "epsilon_high", "delta"):
            draft.takes(key, {}, "sapo clips nothing")
    else:
        _clipped(draft, level, (low, high), aggregation)
    if level != "token" and kind in ("cispo", "sapo"):
        draft.refuse("importance_sampling_level", f"{kind} is of tokens here; expected token")
    draft.takes("importance_sampling_level", {}, "the ratio of a token") if level == "token" else None


def _cispo(draft: Draft, high: float, aggregation: dict[str, Any]) -> None:
    if high <= 1:
        why = (
            f"the weight is bounded by {high:g} itself in TRL, and by 1 + clip_high here, so that a bound of 1 or less cannot be "
            "written; the paper's is above 1: set epsilon_high, such as 5.0"
        )
        draft.refuse("epsilon_high", why)
    bounds = {"algorithm.loss.clip_low": 1.0, "algorithm.loss.clip_high": high - 1}
    draft.takes("loss_type", {"algorithm.loss.kind": "cispo", **aggregation})
    draft.write("algorithm.loss.clip_low", 1.0)
    draft.takes("epsilon_high", bounds, "the bound of the weight; here its distance from 1")
    draft.takes("epsilon", {}, "cispo has no lower bound")
    draft.takes("delta", {}, "cispo does not read it")


def _clipped(draft: Draft, level: str, bounds: tuple[float, float], aggregation: dict[str, Any]) -> None:
    kind = "gspo" if level == "sequence" else "clip"
    if level not in ("token", "sequence"):
        draft.refuse("importance_sampling_level", "expected token or sequence")
    if draft["delta"] is not None:
        if kind == "gspo":
            draft.refuse("delta", "YATT has no second bound for ratios of responses; expected null")
        kind = "dual_clip"
        draft.takes("delta", {"algorithm.loss.kind": kind, "algorithm.loss.ratio_max": draft.real("delta")})
    draft.write("algorithm.loss.kind", kind)
    draft.write("algorithm.loss.clip_low", bounds[0])
    draft.write("algorithm.loss.clip_high", bounds[1])
    if level == "sequence":
        draft.takes("importance_sampling_level", {"algorithm.loss.kind": "gspo"})
    divided = draft.tree["algorithm"].get("mini_batches", 1) > 1
    if draft["loss_type"] == "dapo" and divided:
        draft.differs(
            "loss_type",
            "divided by the tokens of the step here, in TRL by those of the mean step of the generation",
            aggregation,
        )
    elif draft["loss_type"] == "bnpo" and draft.number("gradient_accumulation_steps", 1) > 1:
        draft.differs(
            "loss_type", "divided by the tokens of the step here, in TRL by those of each micro-batch", aggregation
        )
    else:
        draft.takes("loss_type", aggregation)
    draft.takes("epsilon", {"algorithm.loss.clip_low": bounds[0]})
    if draft["epsilon_high"] is not None:
        draft.takes("epsilon_high", {"algorithm.loss.clip_high": bounds[1]})
    else:
        draft.takes("epsilon_high", {}, "as epsilon")


def _advantage(draft: Draft) -> None:
    scale = draft["scale_rewards"]
    if scale not in SCALES:
        draft.refuse("scale_rewards", "expected group, batch or none")
    if draft["multi_objective_aggregation"] == "normalize_then_sum":
        draft.takes("multi_objective_aggregation", {"algorithm.advantage.kind": "gdpo"})
        draft.takes("scale_rewards", {}, "gdpo normalises in groups and over the batch")
        return
    draft.takes("multi_objective_aggregation", {}, "rewards are summed by their weights")
    draft.takes("scale_rewards", {"algorithm.advantage.kind": SCALES[scale]})


def _kl(draft: Draft, per_iteration: int) -> None:
    beta = draft.real("beta")
    if not beta:
        for key in ("beta", "use_bias_correction_kl", "sync_ref_model"):
            draft.takes(key, {}, "no KL penalty, and no reference")
        return
    draft.takes(
        "beta", {"algorithm.kl.coefficient": beta, "algorithm.kl.where": "loss", "algorithm.kl.estimator": "k3"}
    )
    unbiased = draft.truth("use_bias_correction_kl")
    draft.takes("use_bias_correction_kl", {"algorithm.kl.unbiased": unbiased})
    if not draft.truth("sync_ref_model"):
        draft.takes("sync_ref_model", {}, "the reference stays")
        return
    if draft.real("ref_model_mixup_alpha") != 1:
        draft.refuse(
            "ref_model_mixup_alpha",
            "the reference becomes the whole policy here; expected 1.0, or sync_ref_model false",
        )
    key = "ref_model_sync_steps"
    every = draft.quotient(draft.number(key, 1), per_iteration, "optimizer steps by those of an iteration", key)
    draft.takes("sync_ref_model", {}, "algorithm.kl.reference_interval")
    draft.takes("ref_model_mixup_alpha", {}, "the reference becomes the policy")
    draft.takes(key, {"algorithm.kl.reference_interval": every})


def _entropy(draft: Draft) -> None:
    if draft.truth("use_adaptive_entropy"):
        names = {"entropy_target": "target", "entropy_coef_delta": "step", "entropy_coef": "start"}
        draft.takes("use_adaptive_entropy", {"algorithm.entropy.kind": "adaptive"})
        for key, own in names.items():
            draft.write(f"algorithm.entropy.{own}", draft.real(key))
            draft.takes(key, {f"algorithm.entropy.{own}": draft.real(key)})
        draft.differs("entropy_coef_max", "the coefficient has no upper bound here")
        return
    draft.takes("use_adaptive_entropy", {}, "a constant coefficient")
    coefficient = draft.real("entropy_coef")
    if coefficient > 0:
        draft.takes("entropy_coef", {"algorithm.entropy": {"kind": "bonus", "coefficient": coefficient}})
    else:
        draft.takes("entropy_coef", {}, "no bonus")


def _masks(draft: Draft) -> None:
    draft.takes("mask_truncated_completions", {"algorithm.mask_truncated": draft.truth("mask_truncated_completions")})
    if draft["off_policy_mask_threshold"] is not None:
        key = "off_policy_mask_threshold"
        draft.takes(key, {"algorithm.off_policy_mask.delta": draft.real(key)})
    if draft.real("top_entropy_quantile") != 1:
        draft.refuse("top_entropy_quantile", "YATT learns from all tokens; expected 1.0")
    draft.takes("top_entropy_quantile", {}, "all tokens are learnt from")
