"""The critic of verl.

Consumes a draft with verl's keys, and options. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from ops.starter.peers import common
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions, model_of
from ops.starter.peers.verl_learning import ACTOR


def write_critic(draft: Draft, options: TranslationOptions) -> None:
    """Writes the section `algorithm.critic`."""
    draft.takes("critic.optim.lr", {"algorithm.critic.optimizer.learning_rate": draft.real("critic.optim.lr")})
    draft.takes("critic.optim.betas", {"algorithm.critic.optimizer.betas": list(draft["critic.optim.betas"])})
    decay = "critic.optim.weight_decay"
    draft.takes(decay, {"algorithm.critic.optimizer.weight_decay": draft.real(decay)})
    norm = "critic.optim.clip_grad"
    draft.takes(norm, {"algorithm.critic.optimizer.max_grad_norm": draft.real(norm)})
    if draft.given("critic.grad_clip"):
        draft.differs("critic.grad_clip", f"verl reads {norm} in its place, {draft[norm]!r} here")
    _critics_rate(draft)
    draft.write("algorithm.critic.clip", draft.real("critic.cliprange_value"))
    draft.takes("critic.cliprange_value", {"algorithm.critic.clip": draft.real("critic.cliprange_value")})
    warmup = "trainer.critic_warmup"
    draft.takes(warmup, {"algorithm.critic.warmup_iterations": draft.number(warmup)})
    own = "critic.model.path"
    if draft.given(own) and draft[own] != draft["actor_rollout_ref.model.path"] and options.model is None:
        common.no_variable(draft, own)
        draft.takes(own, {"algorithm.critic.model": model_of(draft[own], options.folder)})
    elif draft.given(own):
        draft.takes(own, {}, "the policy's model, as in YATT by default")
    for same in ("ppo_mini_batch_size", "ppo_epochs", "shuffle"):
        if draft[f"critic.{same}"] == draft[f"{ACTOR}.{same}"]:
            draft.takes(f"critic.{same}", {}, "as the policy's")
        elif draft.given(f"critic.{same}"):
            draft.differs(
                f"critic.{same}", f"the critic learns as the policy does, whose {same} is {draft[f'{ACTOR}.{same}']!r}"
            )

    mode = "critic.loss_agg_mode"
    if draft[mode] == "token-mean":
        draft.takes(mode, {}, "as in YATT")
    else:
        draft.differs(mode, "the critic's loss is the mean over tokens here")


def _critics_rate(draft: Draft) -> None:
    """Lists the critic's schedule: its rate is constant here."""
    prefix = "critic.optim"
    why = "the critic's rate is constant here"
    if draft[f"{prefix}.optimizer"] not in (None, "AdamW"):
        draft.refuse(f"{prefix}.optimizer", "YATT has AdamW alone; expected AdamW")
    draft.takes(f"{prefix}.optimizer", {}, "AdamW, as in YATT")
    constant = draft[f"{prefix}.lr_scheduler_type"] == draft[f"{prefix}.lr_decay_style"] == "constant"
    warm = draft.number(f"{prefix}.lr_warmup_steps", -1) > 0 or draft.real(f"{prefix}.lr_warmup_steps_ratio") > 0
    for names, same in (
        (("lr_scheduler_type", "lr_decay_style", "min_lr", "min_lr_ratio", "num_cycles", "lr_decay_steps"), constant),
        (("lr_warmup_steps", "lr_warmup_steps_ratio", "lr_warmup_init"), not warm),
    ):
        for name in names:
            key = f"{prefix}.{name}"
            if same:
                draft.takes(key, {}, "as in YATT, where the critic's rate is constant")
            elif draft.given(key):
                draft.differs(key, why)
