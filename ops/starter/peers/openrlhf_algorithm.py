"""OpenRLHF's algorithm: advantages, losses, KL, corrections, rewards, in YATT's conventions.

Consumes a draft with OpenRLHF's keys. Writes into the draft. Raises `ConfigurationError` for methods that YATT does not have.

Conventions of OpenRLHF 0.11.2: group deviations are over n - 1, plus 1e-9; whitening is over all tokens with the variance
over n; rewards are clipped to `reward.clip_range` after the group's baseline; a KL penalty in the reward is subtracted from
the tokens of what was normalised, in YATT from the reward before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ops.starter.peers import common
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions, model_of
from ops.starter.peers.reasons import OWN_REWARD

ESTIMATOR = "algo.advantage.estimator"
ADVANTAGES: dict[str, dict[str, Any]] = {
    "group_norm": {"kind": "group_std"},
    "dr_grpo": {"kind": "group_mean"},
    "rloo": {"kind": "leave_one_out"},
    "reinforce": {"kind": "reinforce_plus_plus", "baseline": False},
    "reinforce_baseline": {"kind": "reinforce_plus_plus", "baseline": True},
    "gae": {"kind": "gae"},
}
SHARED = frozenset({"adam_betas", "l2", "max_norm"})
"""Names of earlier versions that are of actor and critic at once."""
WHITENED = frozenset({"reinforce", "reinforce_baseline", "gae"})
AGGREGATIONS = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean"}
AFTER = "it is subtracted after the rewards of a group were normalised, here before"


def write_algorithm(draft: Draft, options: TranslationOptions) -> None:
    """Writes the section `algorithm`, and the rewards."""
    _advantage(draft, options)
    _loss(draft)
    _kl(draft)
    _correction(draft)
    _rewards(draft, options)
    _filter(draft)
    coefficient = draft["actor.entropy_coef"]
    if coefficient:
        draft.takes("actor.entropy_coef", {"algorithm.entropy": {"kind": "bonus", "coefficient": float(coefficient)}})
    else:
        draft.takes("actor.entropy_coef", {}, "no bonus; the entropy is a metric in any case")


def _advantage(draft: Draft, options: TranslationOptions) -> None:
    name = draft[ESTIMATOR]
    if name not in ADVANTAGES:
        draft.refuse(ESTIMATOR, f"YATT has no such advantage; expected one of {', '.join(ADVANTAGES)}")
    flat = "algo.advantage.no_std_norm"
    gamma = "algo.advantage.gamma"
    if name in WHITENED and draft.truth(flat):
        draft.refuse(flat, f"{name} is whitened here; leave it out")
    draft.takes(flat, {}, "as in YATT" if name in WHITENED else f"{name} does not read it")
    epsilon = 1e-8 if name in WHITENED else 1e-9
    values = {f"algorithm.advantage.{part}": value for part, value in ADVANTAGES[name].items()}
    draft.takes(ESTIMATOR, {**values, "algorithm.epsilon": epsilon})
    draft.write("algorithm.advantage.kind", ADVANTAGES[name]["kind"])
    if name == "gae":
        draft.takes(gamma, {"algorithm.advantage.gamma": draft.real(gamma)})
        draft.takes("algo.advantage.lambd", {"algorithm.advantage.gae_lambda": draft.real("algo.advantage.lambd")})
        _critic(draft, options)
        return
    if draft.real(gamma) != 1 and name == "reinforce":
        draft.refuse(gamma, "reinforce has no discount here; expected 1")
    draft.takes(gamma, {}, "no discount")
    draft.takes("algo.advantage.lambd", {}, f"{name} does not read it")
    for key in draft.below("critic"):
        draft.takes(f"critic.{key}", {}, f"without effect: {name} has no critic")


def _critic(draft: Draft, options: TranslationOptions) -> None:
    prefix = "critic.adam"
    own = "critic.model_name_or_path"
    to = "algorithm.critic.optimizer"
    draft.takes(f"{prefix}.lr", {f"{to}.learning_rate": draft.real(f"{prefix}.lr")})
    values: dict[str, tuple[str, Callable[[str], Any]]] = {
        "adam.betas": ("betas", lambda key: [float(beta) for beta in draft[key]]),
        "adam.weight_decay": ("weight_decay", draft.real),
        "max_norm": ("max_grad_norm", lambda key: common.norm_bound(draft, key)),
    }
    for name, (ours, value_of) in values.items():
        both = draft.called(f"actor.{name}")
        if both in SHARED:
            draft.write(f"{to}.{ours}", value_of(f"actor.{name}"))
            draft.notes(
                both, draft[f"actor.{name}"], f"of older versions, where it is the critic's as well: {to}.{ours}"
            )
        else:
            draft.takes(f"critic.{name}", {f"{to}.{ours}": value_of(f"critic.{name}")})
    draft.takes(f"{prefix}.eps", {f"{to}.epsilon": draft.real(f"{prefix}.eps")})
    if draft["critic.optim"] != "adam":
        draft.refuse("critic.optim", "YATT has AdamW alone; expected adam")
    draft.takes("critic.optim", {}, "AdamW")
    draft.write("algorithm.critic.clip", draft.real("critic.value_clip"))
    draft.takes("critic.value_clip", {"algorithm.critic.clip": draft.real("critic.value_clip")})
    for key in ("critic.lr_scheduler", "critic.lr_warmup_ratio"):
        draft.differs(key, "the critic's rate is constant here")
    draft.lacks("critic.min_lr_ratio", "the critic's rate is constant here")
    draft.lacks("critic.save_value_network", "checkpoints contain the critic")
    frozen = draft.number("critic.freezing_steps", -1)
    if frozen > 0:
        draft.takes("critic.freezing_steps", {"algorithm.critic.warmup_iterations": frozen})
    if draft[own] is None:
        draft.differs(own, "the critic begins as the reward model if there is one, here as the policy")
    elif options.model is not None:
        draft.differs(own, "--model takes its place")
    else:
        common.no_variable(draft, own)
        draft.takes(own, {"algorithm.critic.model": model_of(draft[own], options.folder)})


def _loss(draft: Draft) -> None:
    kind = {"ppo": "clip", "gspo": "gspo"}.get(draft["actor.policy_loss_type"])
    if kind is None:
        draft.refuse("actor.policy_loss_type", "expected ppo or gspo")
    both = draft["actor.eps_clip_low_high"]
    low, high = (float(one) for one in both) if both is not None else (draft.real("actor.eps_clip"),) * 2
    ratio = draft["actor.dual_clip"]
    if ratio is not None and kind == "clip":
        kind = "dual_clip"
        draft.takes("actor.dual_clip", {"algorithm.loss.ratio_max": float(ratio)})
    draft.takes("actor.policy_loss_type", {"algorithm.loss.kind": kind})
    for path, value in (("kind", kind), ("clip_low", low), ("clip_high", high)):
        draft.write(f"algorithm.loss.{path}", value)
    bounds = {"algorithm.loss.clip_low": low, "algorithm.loss.clip_high": high}
    draft.takes("actor.eps_clip_low_high", {} if both is None else bounds)
    draft.takes("actor.eps_clip", bounds if both is None else {}, "" if both is None else "eps_clip_low_high decides")
    mode = draft["actor.loss_agg_mode"]
    if kind == "gspo":
        draft.write("algorithm.aggregation", "sequence_mean")
        draft.takes("actor.loss_agg_mode", {}, "gspo takes the mean over responses in any case")
        return
    if mode not in AGGREGATIONS:
        draft.refuse("actor.loss_agg_mode", f"expected one of {', '.join(AGGREGATIONS)}")
    draft.takes("actor.loss_agg_mode", {"algorithm.aggregation": AGGREGATIONS[mode]})


def _kl(draft: Draft) -> None:
    key = "algo.kl.init_coef"
    kind = "algo.kl.estimator"
    switch = "algo.kl.use_loss"
    coefficient = draft.real(key)
    if coefficient <= 0:
        for unused in (key, kind, switch, "algo.kl.target", "algo.kl.horizon", "algo.kl.unbiased_gradient"):
            draft.takes(unused, {}, "no KL penalty, and no reference")
        return
    where = "loss" if draft.truth(switch) else "reward"
    draft.write("algorithm.kl.where", where)
    if where == "reward" and draft[ESTIMATOR] not in WHITENED:
        draft.differs(switch, AFTER, {"algorithm.kl.where": where})
    else:
        draft.takes(switch, {"algorithm.kl.where": where})
    draft.takes(key, {"algorithm.kl.coefficient": coefficient})
    if draft[kind] not in ("k1", "k2", "k3"):
        draft.refuse(kind, "expected k1, k2 or k3")
    draft.write("algorithm.kl.estimator", draft[kind])
    draft.takes(kind, {"algorithm.kl.estimator": draft[kind]})
    if draft.truth("algo.kl.unbiased_gradient"):
        draft.differs(
            "algo.kl.unbiased_gradient", "algorithm.kl.unbiased corrects a step's value and gradient by its ratio"
        )
    if draft["algo.kl.target"] is not None:
        draft.takes("algo.kl.target", {"algorithm.kl.adaptive.target": draft.real("algo.kl.target")})
        draft.takes("algo.kl.horizon", {"algorithm.kl.adaptive.horizon": draft.real("algo.kl.horizon")})
    else:
        draft.takes("algo.kl.horizon", {}, "a constant coefficient")


def _correction(draft: Draft) -> None:
    if draft["enable_vllm_is_correction"]:
        _older_correction(draft)
        return
    prefix = "algo.advantage.is_correction"
    level, mode, gating, bounds = (f"{prefix}_{name}" for name in ("level", "mode", "gating", "threshold"))
    if draft[level] == "off":
        for key in (level, mode, gating, bounds):
            draft.takes(key, {}, "no correction")
        return
    if draft[gating] != "ratio":
        draft.refuse(gating, "YATT corrects by ratios; expected ratio")
    given = draft[bounds] if isinstance(draft[bounds], list) else [draft[bounds]]
    low, high = (0.0, float(given[0])) if len(given) == 1 else (float(given[0]), float(given[1]))
    to = "algorithm.importance_correction"
    if draft[mode] == "clip":
        if low > 0:
            draft.refuse(bounds, f"a truncated weight has no lower bound here; expected {high:g} alone")
        draft.takes(mode, {f"{to}.kind": "truncate"})
        draft.takes(bounds, {f"{to}.cap": high})
    else:
        draft.takes(mode, {f"{to}.kind": "mask"})
        draft.takes(bounds, {f"{to}.low": low, f"{to}.high": high})
    draft.takes(gating, {}, "the ratio")
    if draft[level] == "token":
        draft.takes(level, {f"{to}.by": "token"})
    else:
        why = "responses within the bounds keep the weights of their tokens in OpenRLHF, here they have the mean weight"
        draft.differs(level, why, {f"{to}.by": "sequence_mean"})


def _older_correction(draft: Draft) -> None:
    """Writes the correction by its older keys: `icepop` masks tokens, `tis` truncates their weights."""
    key = "enable_vllm_is_correction"
    kind = "vllm_is_correction_type"
    bounds = "vllm_is_truncated_threshold"
    given = draft[bounds] if isinstance(draft[bounds], list) else [0.5, 5.0]
    low = float(given[0])
    high = float(given[1])
    to = "algorithm.importance_correction"
    name = draft[kind] or "tis"
    draft.takes(key, {f"{to}.by": "token"}, "of versions before 0.11")
    if name == "icepop":
        draft.takes(kind, {f"{to}.kind": "mask", f"{to}.low": low, f"{to}.high": high})
        draft.takes(bounds, {}, "the bounds of the mask")
    elif name == "tis":
        draft.write(f"{to}.kind", "truncate")
        draft.write(f"{to}.cap", high)
        draft.takes(kind, {f"{to}.kind": "truncate", f"{to}.cap": high})
        draft.differs(bounds, "a truncated weight has no lower bound here", {f"{to}.cap": high})
    else:
        draft.refuse(kind, "expected icepop or tis")


def _rewards(draft: Draft, options: TranslationOptions) -> None:
    judge = "reward.model_name_or_path"
    if draft[judge] is not None:
        if options.rewarded:
            draft.differs(judge, "--reward takes its place")
        else:
            common.no_variable(draft, judge)
            names = str(draft[judge]).split(",")
            parts = [_part(name.strip(), number, options) for number, name in enumerate(names)]
            draft.takes(judge, {"rewards.parts": parts})
    for key in ("reward.remote_url", "train.agent_func_path"):
        draft.lacks(key, OWN_REWARD)
    draft.differs("reward.clip_range", "rewards are not clipped here")
    if draft.truth("reward.normalize_enable"):
        draft.differs(
            "reward.normalize_enable",
            "a reward model's logits are not normalised by what it scored in training; score: sigmoid bounds them",
        )
    else:
        draft.takes("reward.normalize_enable", {}, "not normalised")
    buffer = draft["reward.overlong_buffer_len"]
    factor = "reward.overlong_penalty_factor"
    if buffer is not None:
        to = {"algorithm.length_penalty.kind": "overlong", "algorithm.length_penalty.buffer": int(buffer)}
        draft.takes("reward.overlong_buffer_len", to)
        draft.takes(factor, {"algorithm.length_penalty.penalty": draft.real(factor)})


def _part(name: str, number: int, options: TranslationOptions) -> dict[str, Any]:
    return {
        "name": "reward_model" if not number else f"reward_model_{number + 1}",
        "kind": "reward_model",
        "model": model_of(name, options.folder),
    }


def _filter(draft: Draft) -> None:
    key = "algo.dynamic_filtering_enable"
    limits = "algo.dynamic_filtering_range"
    if not draft.truth(key):
        for unused in (key, limits):
            draft.takes(unused, {}, "every group is learnt from")
        return
    why = "groups with equal rewards are left out; what is still missing after max_waves is padded"
    draft.differs(key, why, {"dynamic_sampling.kind": "valid_group"})
    given = [float(one) for one in draft[limits]]
    if given == [0.0, 1.0]:
        draft.takes(limits, {}, "with rewards of 0 and 1, the groups whose rewards differ")
    else:
        draft.differs(limits, "a group is valid if its rewards differ, whatever their mean")
