"""verl's algorithm: advantages, losses, KL, clipping, aggregation, corrections, filters, in YATT's conventions.

Consumes a draft with verl's keys. Writes into the draft. Raises `ConfigurationError` for methods that YATT does not have.

Conventions of verl 0.9.1 (`verl/trainer/ppo/core_algos.py`): `vanilla` is dual-clip PPO with c = 3 and the bounds
`clip_ratio_low` and `clip_ratio_high`, which are 0.2 and not null by default; group deviations are over n - 1, plus 1e-6;
whitening divides by sqrt(var + 1e-8); CISPO's bounds are distances from 1, as here.
"""

from __future__ import annotations

import re
from typing import Any

from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.verl_corrections import write_correction
from ops.starter.peers.verl_critic import write_critic
from ops.starter.peers.verl_learning import ACTOR

LOSS = f"{ACTOR}.policy_loss.loss_mode"
KL_NAMES = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "fixed_length",
}
PENALTIES = {
    "custom_reward_function.overlong_buffer": "dapo",
    "reward_model.overlong_buffer": "dapo",
    "reward.reward_kwargs.overlong_buffer_cfg": "naive",
}
"""Where a length penalty is, each with the reward manager that is in effect where the file names none."""
LIMIT = "reward.reward_kwargs.max_resp_len"
PENALTY_SWITCH = re.compile(r"(?:algorithm|reward|reward_model|data)\.(?:.*\.)?overlong_buffer(?:_cfg)?(?:\.enable)?")
GROUPED = {"grpo", "grpo_vectorized"}
ADVANTAGES: dict[str, dict[str, Any]] = {
    "rloo": {"kind": "leave_one_out"},
    "rloo_vectorized": {"kind": "leave_one_out"},
    "reinforce_plus_plus": {"kind": "reinforce_plus_plus", "baseline": False},
    "reinforce_plus_plus_baseline": {"kind": "reinforce_plus_plus", "baseline": True},
}


def write_algorithm(draft: Draft, options: TranslationOptions) -> None:
    """Writes the section `algorithm`, and what belongs to it elsewhere."""
    _advantage(draft, options)
    _loss(draft)
    _aggregation(draft)
    _kl(draft)
    _entropy(draft)
    write_correction(draft)
    _length_penalty(draft)
    _filter(draft)


def _advantage(draft: Draft, options: TranslationOptions) -> None:
    key = "algorithm.adv_estimator"
    name = draft[key]
    if name in GROUPED:
        by_std = "algorithm.norm_adv_by_std_in_grpo"
        kind = "group_std" if draft.truth(by_std) else "group_mean"
        draft.takes(key, {"algorithm.advantage.kind": kind, "algorithm.epsilon": 1e-6}, "with the 1e-6 that verl adds")
        draft.takes(by_std, {}, f"the advantage {kind}")
    elif name in ADVANTAGES:
        if name == "reinforce_plus_plus" and draft["algorithm.gamma"] != 1:
            draft.refuse("algorithm.gamma", "reinforce_plus_plus has no discount here; expected 1")
        values = {f"algorithm.advantage.{part}": value for part, value in ADVANTAGES[name].items()}
        draft.takes(key, {**values, "algorithm.epsilon": 1e-8}, "with the 1e-8 that verl adds to the variance")
    elif name == "gae":
        draft.takes(key, {"algorithm.advantage.kind": "gae", "algorithm.epsilon": 1e-8})
        draft.takes("algorithm.gamma", {"algorithm.advantage.gamma": draft.real("algorithm.gamma")})
        draft.takes("algorithm.lam", {"algorithm.advantage.gae_lambda": draft.real("algorithm.lam")})
        write_critic(draft, options)
    else:
        known = sorted([*GROUPED, *ADVANTAGES, "gae"])
        draft.refuse(key, f"YATT has no such advantage; expected one of {', '.join(known)}")
    if name != "gae":
        for unused in ("trainer.critic_warmup", *(f"critic.{key}" for key in draft.below("critic"))):
            draft.takes(unused, {}, f"without effect: {name} has no critic")


def _bounds(draft: Draft) -> tuple[float, float]:
    """Returns the lower and the upper bound, and lists their keys."""
    low = f"{ACTOR}.clip_ratio_low"
    high = f"{ACTOR}.clip_ratio_high"
    both = f"{ACTOR}.clip_ratio"
    if draft.given(both):
        effect = draft[low] is None or draft[high] is None
        why = "" if effect else f"verl reads clip_ratio_low {draft[low]} and clip_ratio_high {draft[high]} in its place"
        draft.takes(both, {}, why or "the bound that clip_ratio_low or clip_ratio_high leaves open")
    values = [draft.real(both) if draft[key] is None else draft.real(key) for key in (low, high)]
    return values[0], values[1]


def _loss(draft: Draft) -> None:
    mode = draft[LOSS]
    low, high = _bounds(draft)
    bounds = {f"{ACTOR}.clip_ratio_low": ("clip_low", low), f"{ACTOR}.clip_ratio_high": ("clip_high", high)}
    ratio = f"{ACTOR}.clip_ratio_c"
    kinds = {
        "vanilla": "dual_clip",
        "gspo": "gspo",
        "geo_mean": "gmpo",
        "cispo": "cispo",
        "clip_cov": "clip",
        "sapo": "sapo",
    }
    if mode not in kinds:
        draft.refuse(LOSS, f"YATT has no such loss with these rules; expected one of {', '.join(kinds)}")
    kind = kinds[mode]
    draft.takes(
        LOSS, {"algorithm.loss.kind": kind}, "with verl's bound for negative advantages" if mode == "vanilla" else ""
    )
    draft.write("algorithm.loss.kind", kind)
    for key, (name, value) in bounds.items():
        if kind == "sapo":
            draft.takes(key, {}, "sapo clips nothing")
        else:
            draft.write(f"algorithm.loss.{name}", value)
            draft.takes(key, {f"algorithm.loss.{name}": value})
    if kind == "dual_clip":
        draft.takes(ratio, {"algorithm.loss.ratio_max": draft.real(ratio)})
    elif draft.given(ratio):
        draft.takes(ratio, {}, f"{mode} does not read it")
    for name, own in (("tau_pos", "tau_positive"), ("tau_neg", "tau_negative")):
        if kind == "sapo":
            draft.takes(f"{ACTOR}.{name}", {f"algorithm.loss.{own}": draft.real(f"{ACTOR}.{name}")})
        elif draft.given(f"{ACTOR}.{name}"):
            draft.takes(f"{ACTOR}.{name}", {}, f"{mode} does not read it")
    if mode == "clip_cov":
        _clip_cov(draft)


def _clip_cov(draft: Draft) -> None:
    draft.write("algorithm.entropy.kind", "clip_cov")
    for name, own in (("clip_cov_ratio", "fraction"), ("clip_cov_lb", "low"), ("clip_cov_ub", "high")):
        key = f"{ACTOR}.policy_loss.{name}"
        draft.takes(key, {f"algorithm.entropy.{own}": draft.real(key)})


def _aggregation(draft: Draft) -> None:
    key = f"{ACTOR}.loss_agg_mode"
    scale = f"{ACTOR}.loss_scale_factor"
    mode = draft[key]
    whole = draft[LOSS] in ("sapo", "geo_mean")
    if whole:
        draft.write("algorithm.aggregation", "sequence_mean")
        draft.takes(key, {}, f"{draft[LOSS]} takes the mean over responses in any case")
        return
    if mode not in AGGREGATIONS:
        draft.refuse(key, f"YATT has no such aggregation; expected one of {', '.join(AGGREGATIONS)}")
    draft.takes(key, {"algorithm.aggregation": AGGREGATIONS[mode]})
    if draft[LOSS] == "gspo" and mode != "seq-mean-token-mean":
        draft.notes(
            "aggregation of gspo",
            mode,
            "verl 0.9.1 reads loss_agg_mode beside gspo; older versions took the mean over responses whatever it says: for a run "
            "of theirs, write algorithm.aggregation: sequence_mean",
        )
    if not draft.given(scale):
        return
    if mode != "seq-mean-token-sum-norm" or draft[scale] in (None, draft["data.max_response_length"]):
        draft.takes(scale, {}, "as fixed_length, which divides by rollout.max_new_tokens")
    else:
        draft.differs(scale, f"fixed_length divides by rollout.max_new_tokens, {draft['data.max_response_length']}")


def _kl(draft: Draft) -> None:
    in_loss = draft.truth(f"{ACTOR}.use_kl_loss")
    in_reward = draft.truth("algorithm.use_kl_in_reward")
    if in_loss and in_reward:
        draft.refuse(
            "algorithm.use_kl_in_reward", f"beside {ACTOR}.use_kl_loss: one KL penalty is possible here; keep one"
        )
    if in_loss:
        _kl_in(
            draft=draft,
            switch=f"{ACTOR}.use_kl_loss",
            where="loss",
            kind=f"{ACTOR}.kl_loss_type",
            coefficient=f"{ACTOR}.kl_loss_coef",
        )
    elif draft.given(f"{ACTOR}.use_kl_loss"):
        draft.takes(f"{ACTOR}.use_kl_loss", {}, "no penalty in the loss")
    if in_reward:
        _kl_in(
            draft=draft,
            switch="algorithm.use_kl_in_reward",
            where="reward",
            kind="algorithm.kl_penalty",
            coefficient="algorithm.kl_ctrl.kl_coef",
        )
        _adaptive(draft)
    elif draft.given("algorithm.use_kl_in_reward"):
        draft.takes("algorithm.use_kl_in_reward", {}, "no penalty in the reward")
    unused = [] if in_loss else [f"{ACTOR}.kl_loss_type", f"{ACTOR}.kl_loss_coef"]
    unused += [] if in_reward else ["algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type"]
    for key in unused:
        draft.takes(key, {}, "without effect: the penalty that it belongs to is off")


def _kl_in(draft: Draft, switch: str, where: str, kind: str, coefficient: str) -> None:
    name = str(draft[kind])
    if name.removesuffix("+") not in KL_NAMES:
        draft.refuse(kind, f"YATT has no such estimator; expected one of {', '.join(KL_NAMES)}")
    if draft.real(coefficient) <= 0:
        draft.takes(switch, {}, "no penalty: its coefficient is 0")
        for key in (kind, coefficient):
            draft.takes(key, {}, "without effect: the coefficient is 0")
        return
    estimator = KL_NAMES[name.removesuffix("+")]
    draft.takes(switch, {"algorithm.kl.where": where})
    draft.write("algorithm.kl.where", where)
    if name.endswith("+"):
        draft.differs(kind, "its gradient is that of k2 in verl", {"algorithm.kl.estimator": estimator})
    else:
        draft.takes(kind, {"algorithm.kl.estimator": estimator})
    draft.takes(coefficient, {"algorithm.kl.coefficient": draft.real(coefficient)})


def _adaptive(draft: Draft) -> None:
    kind = "algorithm.kl_ctrl.type"
    if draft[kind] != "adaptive":
        draft.takes(kind, {}, "a constant coefficient")
        return
    draft.takes(kind, {}, "algorithm.kl.adaptive")
    for name, own in (("target_kl", "target"), ("horizon", "horizon")):
        key = f"algorithm.kl_ctrl.{name}"
        draft.takes(key, {f"algorithm.kl.adaptive.{own}": draft.real(key)})


def _entropy(draft: Draft) -> None:
    key = f"{ACTOR}.entropy_coeff"
    if draft.real(key) > 0:
        if draft[LOSS] == "clip_cov":
            draft.refuse(key, "beside loss_mode clip_cov: one of the two holds the entropy up here; expected 0")
        draft.takes(key, {"algorithm.entropy": {"kind": "bonus", "coefficient": draft.real(key)}})
    elif draft.given(key):
        draft.takes(key, {}, "no bonus, as in YATT by default")


def _length_penalty(draft: Draft) -> None:
    for prefix, reader in PENALTIES.items():
        keys = {name: f"{prefix}.{name}" for name in ("enable", "len", "penalty_factor", "log")}
        manager = _manager(draft, reader)
        if not draft.truth(keys["enable"]) or manager == "naive":
            why = f"the reward manager {manager} does not read it" if draft[keys["enable"]] else "no length penalty"
            for key in keys.values():
                draft.takes(key, {}, why)
            continue
        draft.takes(keys["enable"], {"algorithm.length_penalty.kind": "overlong"})
        draft.takes(keys["len"], {"algorithm.length_penalty.buffer": draft.number(keys["len"], 1)})
        if draft[keys["penalty_factor"]] is not None:
            penalty = {"algorithm.length_penalty.penalty": draft.real(keys["penalty_factor"])}
            draft.takes(keys["penalty_factor"], penalty)
        draft.takes(keys["log"], {}, "the penalty is a metric in any case")
    longest = "data.max_response_length"
    if "length_penalty" in draft.tree["algorithm"] and draft[LIMIT] not in (None, draft[longest]):
        draft.refuse(LIMIT, f"the penalty ends at {longest} here, {draft[longest]}; expected the same")
    draft.takes(LIMIT, {}, f"as {longest}, at which the penalty ends")
    for entry in draft.unlisted():
        if PENALTY_SWITCH.fullmatch(entry.key) and entry.value is not False:
            draft.refuse(
                entry.key, f"verl reads a length penalty under one of {', '.join(PENALTIES)}; expected it there"
            )


def _manager(draft: Draft, reader: str) -> str:
    """Returns the reward manager.

    reader: the one where a penalty of this name was introduced, which reads it unless the file says otherwise.
    """
    older = "reward_model.reward_manager"
    present = "reward.reward_manager.name"
    if draft[older] is not None:
        return str(draft[older])
    return str(draft[present]) if draft.given(present) else reader


def _filter(draft: Draft) -> None:
    prefix = "algorithm.filter_groups"
    if not draft.truth(f"{prefix}.enable"):
        draft.takes(f"{prefix}.enable", {}, "every group is learnt from")
        return
    draft.differs(
        f"{prefix}.enable",
        "groups with equal rewards are left out and others drawn, as many as the rate so far predicts; what is missing after "
        "max_waves is padded",
        {"dynamic_sampling.kind": "valid_group"},
    )
    waves = f"{prefix}.max_num_gen_batches"
    if draft.number(waves) > 0:
        draft.takes(waves, {"dynamic_sampling.max_waves": draft.number(waves)})
    else:
        draft.differs(waves, "no limit there; here 100 waves", {"dynamic_sampling.max_waves": 100})
    draft.lacks("data.gen_batch_size", "the number of prompts in a wave follows the rate of valid groups")
