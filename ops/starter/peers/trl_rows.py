"""TRL's DPO, SFT and reward models: what their keys mean in a spec.

Consumes a draft with TRL's keys, and options. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.starter.peers import common, trl
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.reasons import OFF, TRL_REASONS
from ops.starter.peers.total_length import total_length
from yatt_core.counting import many

PAIRS = {"prompt_field": None, "chosen_field": "chosen", "rejected_field": "rejected"}
"""Pairs whose prompt is what both responses begin with, as in TRL's own data sets."""


def translate_dpo(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a DPO run."""
    losses = draft["loss_type"] if isinstance(draft["loss_type"], list) else [draft["loss_type"]]
    if losses != ["sigmoid"]:
        draft.refuse("loss_type", "YATT has DPO's own loss; expected sigmoid")
    if draft["f_divergence_type"] != "reverse_kl":
        draft.refuse("f_divergence_type", "YATT has DPO's own divergence; expected reverse_kl")
    draft.write("objective.kind", "dpo")
    draft.takes("loss_type", {"objective.kind": "dpo"})
    draft.takes("f_divergence_type", {}, "as in YATT")
    if draft["loss_weights"] not in (None, [1.0]):
        draft.refuse("loss_weights", "expected one loss with a weight of 1")
    draft.takes("loss_weights", {}, "one loss")
    for key in ("discopop_tau", "f_alpha_divergence_coef"):
        draft.takes(key, {}, "without effect beside sigmoid and reverse_kl")
    draft.takes("beta", {"objective.beta": draft.real("beta")})
    if draft.real("label_smoothing"):
        draft.differs(
            "label_smoothing",
            "without effect in TRL beside sigmoid, so that nothing is written; here it would have one",
        )
    else:
        draft.takes("label_smoothing", {}, "none")
    for key in ("ld_alpha", "use_weighting", "sync_ref_model"):
        if draft[key]:
            draft.refuse(key, "YATT has no counterpart, and the loss would be another one; leave it out")
        draft.takes(key, {}, "off, as in YATT")
    _rows(draft, options, PAIRS, "pairs under `chosen` and `rejected`, whose prompt is what both begin with")
    common.off(draft, OFF["trl"])
    draft.finish(TRL_REASONS)


def translate_reward(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a run that trains a reward model."""
    draft.write("objective.kind", "reward_model")
    if draft["center_rewards_coefficient"]:
        draft.refuse("center_rewards_coefficient", "YATT has no such term; leave it out")
    draft.takes("center_rewards_coefficient", {}, "off, as in YATT")
    _rows(draft, options, PAIRS, "pairs under `chosen` and `rejected`, whose prompt is what both begin with")
    common.off(draft, OFF["trl"])
    draft.finish(TRL_REASONS)


def translate_sft(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of an SFT run."""
    draft.write("objective.kind", "sft")
    if draft["loss_type"] != "nll":
        draft.refuse("loss_type", "YATT maximises the likelihood; expected nll")
    draft.takes("loss_type", {}, "the likelihood, averaged over the tokens of a step")
    if not draft.truth("assistant_only_loss"):
        draft.differs(
            "assistant_only_loss", "of a conversation TRL learns every token, YATT those of the assistant's messages"
        )
    else:
        draft.takes("assistant_only_loss", {}, "the assistant's messages are learnt, as in YATT")
    if draft["completion_only_loss"] is False:
        draft.differs("completion_only_loss", "YATT learns the response, not the prompt")
    else:
        draft.takes("completion_only_loss", {}, "the response is learnt, as in YATT")
    if draft.truth("packing"):
        why = "a row of TRL's batch is filled with several examples up to max_length; here the batch counts examples"
        draft.differs("packing", why)
    else:
        draft.takes("packing", {}, "a batch counts examples")
        draft.takes("packing_strategy", {}, "without effect: packing is false")
    draft.takes("shuffle_dataset", {}, "rows come in a seeded order, as TRL's sampler draws them")
    fields = {"prompt_field": "messages"}
    _rows(
        draft, options, fields, "conversations under `messages`, as TRL reads them; name text or other keys with --data"
    )
    draft.lacks("dataset_text_field", "rows of text alone are recognised with --data")
    common.off(draft, OFF["trl"])
    draft.finish(TRL_REASONS)


def _rows(draft: Draft, options: TranslationOptions, fields: Mapping[str, Any], why: str) -> None:
    """Writes what these trainers share: an iteration is an optimizer step."""
    trl.beginning(draft)
    trl.model(draft, options)
    trl.sources(draft, options, dict(fields), why)
    rows = trl.batch(draft, options)
    draft.write("data.prompts_per_iteration", rows)
    trl.batch_keys(draft, options, {"data.prompts_per_iteration": rows}, f"{many(rows, 'row')} in an optimizer step")
    cut = draft["truncation_mode"] if draft["truncation_mode"] is not None else "keep_start"
    total_length(draft, options, "max_length", f"TRL cuts longer rows ({cut})")
    draft.takes("truncation_mode", {}, "see max_length")
    if draft["max_prompt_length"] is not None:
        why = "of older versions, which cut longer prompts; here max_length limits them"
        draft.differs("max_prompt_length", why)
    trl.optimizer(draft)
    drops = draft.truth("dataloader_drop_last")
    if drops:
        draft.takes("dataloader_drop_last", {}, "the last, smaller batch of a pass is not counted")
    else:
        draft.takes("dataloader_drop_last", {}, "the last, smaller batch of a pass is counted")
    steps = trl.length(draft, options, rows, 1, whole_only=drops)
    trl.schedule(draft, steps, 1)
    trl.engine(draft, options)
    trl.surveys(draft, steps, 1)
